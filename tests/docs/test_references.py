"""Reference documents name all that there is: keys, kinds of alarms, methods, tables."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from mirrord.catalogue.schema import MIGRATIONS
from mirrord.config import host, hosts, peers, reading
from mirrord.config.schedules import KEYS, Schedules
from mirrord.control.command import Right
from mirrord.control.methods import methods
from mirrord.core.policies import POLICY_NAMES
from mirrord.core.records import AlarmKind
from tests.docs import wire_methods
from tests.support.definitions import two_sites
from tests.support.unit import ROOT


def document(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def examples(name: str) -> list[str]:
    return re.findall(r"^```toml\n(.*?)^```$", document(name), re.MULTILINE | re.DOTALL)


KEYS_OF_DEFINITIONS = sorted({*reading._KEYS, *reading._SITE, *reading._HOOKS, *KEYS, *peers._KEYS})


@pytest.mark.parametrize("key", KEYS_OF_DEFINITIONS)
def test_every_key_of_definitions_and_schedules_is_documented(key: str) -> None:
    assert re.search(rf"`\[*{key}(\.NAME)?\]*`", document("config.md"))


def test_every_key_of_other_hosts_is_documented() -> None:
    part = document("config.md").partition("## Other hosts")[2].partition("\n## ")[0]
    for key in hosts._KEYS:
        assert f"| `{key}` |" in part
    for name in hosts.TRANSPORTS:
        assert f'`"{name}"`' in part


def test_every_policy_is_documented() -> None:
    for name in POLICY_NAMES:
        assert f"`{name}`" in document("policies.md") and f'`"{name}"`' in document("config.md")


def test_every_setting_of_the_host_is_documented() -> None:
    [example] = [each for each in examples("config.md") if "[limits]" in each]
    for table, keys in host._KEYS.items():
        if isinstance(keys, dict):
            block = example.split(f"[{table}]")[1].split("\n[")[0]
            for key in set(keys) - {"*"}:
                assert re.search(rf"^(# )?{key} = ", block, re.MULTILINE), key
        else:
            assert f"{table} = " in example


def test_the_settings_in_the_example_are_the_defaults(tmp_path: Path) -> None:
    [example] = [each for each in examples("config.md") if "[limits]" in each]
    file = tmp_path / "mirrord.toml"
    file.write_text(example)
    assert host.load(file) == host.Host()
    file.write_text(re.sub(r"^# (?=\w+ = )", "", example, flags=re.MULTILINE))
    assert host.load(file).links == {"office": "10Mbit/s Mon-Fri 08:00-18:00, else 50Mbit/s"}


def test_the_examples_of_definitions_are_right(tmp_path: Path) -> None:
    found = [each for each in examples("config.md") if "[site." in each]
    assert len(found) == 4
    for text in found:
        definition = reading.parse("home", text, "home.toml")
        Schedules(tmp_path).of(definition)


def test_the_examples_of_hooks_and_alarms_are_right(tmp_path: Path) -> None:
    sites = two_sites("block:/a", "block:/b")
    for text in examples("hooks.md"):
        head = "[site.primary.hooks]\n"
        table = text if text.startswith(head) else head + text
        assert any(reading.parse("home", sites + table, "home.toml").hooks)
    for number, text in enumerate(examples("alarms.md")):
        file = tmp_path / f"{number}.toml"
        file.write_text(text)
        assert host.load(file).alarms.program


def test_the_named_schedule_in_the_example_is_right(tmp_path: Path) -> None:
    [example] = [each for each in examples("schedules.md") if "run =" in each]
    (tmp_path / "mine.toml").write_text(example)
    assert Schedules(tmp_path).named("mine").run == tuple(tomllib.loads(example)["run"])


def test_the_peer_in_the_example_is_right(tmp_path: Path) -> None:
    [example] = [each for each in examples("config.md") if "append_only =" in each]
    (tmp_path / "berlin.toml").write_text(example)
    assert peers.Peers(tmp_path).load("berlin").append_only


def test_every_kind_of_alarm_is_documented() -> None:
    found = re.findall(r"^\| `(\w+)` \| ", document("alarms.md"), re.MULTILINE)
    assert tuple(found[: len(AlarmKind)]) == tuple(AlarmKind)


def test_every_method_is_documented_with_its_socket() -> None:
    rows = re.findall(r"^\| (`.*?) \| (status|control) \| ", document("api.md"), re.MULTILINE)
    found = {name: socket for names, socket in rows for name in re.findall(r"`(\w+)`", names)}
    assert found == {
        name: "status" if command.right is Right.READ else "control"
        for name, command in methods().items()
    }


def test_every_method_of_the_wire_is_documented() -> None:
    assert wire_methods.documented() == wire_methods.table(), "python -m tests.docs.wire_methods"


def test_every_table_is_documented() -> None:
    tables = set(re.findall(r"CREATE TABLE (\w+)", "".join(MIGRATIONS)))
    assert sorted(re.findall(r"^\| `(\w+)` \| ", document("catalogue.md"), re.M)) == sorted(tables)
