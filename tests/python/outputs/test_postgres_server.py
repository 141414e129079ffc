"""The tests' server: without it tests are skipped with the remedy; in CI they fail."""

import psycopg
import pytest

from outputs_support import postgres_server as server


@pytest.mark.parametrize(
    ("ci", "outcome"), [(None, pytest.skip.Exception), ("true", pytest.fail.Exception)]
)
def test_tests_are_skipped_without_a_server_and_fail_in_ci(monkeypatch, ci, outcome):
    monkeypatch.setattr(server, "find_binaries", lambda: None)
    monkeypatch.delenv("CI", raising=False)
    if ci:
        monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="on Debian and Ubuntu: make postgres"):
        next(server.started_server())


def test_server_is_durable(postgres_server):
    """Otherwise the tests of crashes would prove nothing."""
    with psycopg.connect(postgres_server.conninfo()) as connection:
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
        assert connection.execute("SHOW listen_addresses").fetchone() == ("127.0.0.1",)
