"""Reads the pages that views write."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """The elements of a page, and whether every one that was opened is closed again."""

    VOID = ("meta", "img", "hr", "!doctype")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["style"], ["script"]):
            self.texts.append(data)

    def find(self, tag: str, kind: str = "") -> list[dict[str, str]]:
        return [given for name, given in self.elements if name == tag and kind in [*given.get("class", "").split(), ""]]
