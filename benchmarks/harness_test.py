"""Who is measured when, and what a worker's end means."""

import pytest

from benchmarks import harness


def test_failures_get_no_further_round():
  order = []

  def measure(key):
    order.append(key)
    return {"error": "broken"} if key == "b" else {"secs": len(order)}

  found = harness.in_turn(measure, "abc", rounds=2)
  assert order == ["a", "b", "c", "a", "c"]
  assert found["a"] == [{"secs": 1}, {"secs": 4}]


ZERO = "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
  ("code", "expected", "shown"),
  [
    (
      "print('noise'); print('slow', file=sys.stderr); print(sys.argv[1])",
      *({"x": 1}, ["slow"]),
    ),
    ("1 / 0", {"error": ZERO}, [ZERO]),
    ("sys.exit(3)", {"error": "exit status 3"}, []),
    ("sys.exit('no file')", {"error": "no file"}, ["no file"]),
    (
      "import a_peer",  # the table says that it is missing
      *({"error": "ModuleNotFoundError: No module named 'a_peer'"}, []),
    ),
    (
      "import atexit; atexit.register(lambda: print('bye', file=sys.stderr))\n"
      "raise MemoryError('RESOURCE_EXHAUSTED\\nbuffers:\\n======')",
      *({"error": "MemoryError: RESOURCE_EXHAUSTED"}, ["bye"]),
    ),
  ],
)
def test_workers(tmp_path, monkeypatch, capsys, code, expected, shown):
  (tmp_path / "made_up.py").write_text(f"import sys\n{code}\n")
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))
  assert harness.worker("made_up", {"x": 1}) == expected
  assert capsys.readouterr().err.splitlines()[-1:] == shown
