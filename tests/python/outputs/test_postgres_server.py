"""The server of the tests: where there is none, tests are skipped with what to do; in CI they fail."""

import psycopg
import pytest

from outputs_support import postgres_server as server


@pytest.mark.parametrize(
    ("ci", "outcome"), [(None, pytest.skip.Exception), ("true", pytest.fail.Exception)]
)
def test_without_a_server_tests_are_skipped_and_in_ci_they_fail(monkeypatch, ci, outcome):
    monkeypatch.setattr(server, "find_binaries", lambda: None)
    monkeypatch.delenv("CI", raising=False)
    if ci:
        monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="on Debian and Ubuntu: make postgres"):
        next(server.started_server())


def test_the_server_keeps_its_promise_of_durability(postgres_server):
    """Else the tests of crashes would prove nothing."""
    with psycopg.connect(postgres_server.conninfo()) as connection:
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
        assert connection.execute("SHOW listen_addresses").fetchone() == ("127.0.0.1",)
