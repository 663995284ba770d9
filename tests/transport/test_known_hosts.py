"""Files of known host keys: what ssh-keygen finds in them is what we find."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from mirrord.transport.known_hosts import Known, fingerprint, look_up, name_of
from tests.support.sshd import make_key


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    file = make_key(tmp_path_factory.mktemp("keys") / "key")
    return Path(f"{file}.pub").read_text().split()


def known(tmp_path: Path, text: str, name: str) -> Known:
    file = tmp_path / "known_hosts"
    file.write_text(text)
    return look_up([tmp_path / "none", file], name)


@pytest.mark.parametrize(
    ("names", "name", "found"),
    [
        ("dr", "dr", True),
        ("dr", "dr2", False),
        ("DR.Example.org", "dr.example.org", True),
        ("a,dr,b", "dr", True),
        ("*.example.org", "dr.example.org", True),
        ("*.example.org", "example.org", False),
        ("d?", "dr", True),
        ("*.example.org,!dr.example.org", "dr.example.org", False),
        ("!dr.example.org,*.example.org", "dr.example.org", False),
        ("[dr]:2222", "[dr]:2222", True),
        ("[dr]:2222", "dr", False),
        ("dr", "[dr]:2222", False),
        ("[*.example.org]:2222", "[dr.example.org]:2222", True),
        ("[dr]:2222", "d:2222", False),
    ],
)
def test_names(tmp_path: Path, key: list[str], names: str, name: str, found: bool) -> None:
    made = known(tmp_path, f"{names} {key[0]} {key[1]} comment\n", name)
    assert bool(made.keys) is found


@pytest.mark.parametrize("name", ["dr.example.org", "[dr.example.org]:2222"])
def test_hashed_names(tmp_path: Path, key: list[str], name: str) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"{name} {key[0]} {key[1]}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    assert name not in file.read_text()
    assert [each.place for each in look_up([file], name).keys] == [f"{file}:1"]
    assert not look_up([file], "other.example.org").keys


def test_markers(tmp_path: Path, key: list[str]) -> None:
    line = f"{key[0]} {key[1]}"
    made = known(tmp_path, f"@revoked * {line}\n@cert-authority *.org {line}\n", "dr.org")
    assert not made.keys and made.authority
    assert [each.blob for each in made.revoked] == [base64.b64decode(key[1])]
    assert not known(tmp_path, f"@unheard-of dr {line}\n", "dr").keys


@pytest.mark.parametrize("line", ["dr", "dr ssh-ed25519", "dr ssh-ed25519 %%%", "|1|x|y k AAAA"])
def test_a_broken_line_makes_nothing_known(tmp_path: Path, key: list[str], line: str) -> None:
    made = known(tmp_path, f"{line}\n# dr {key[0]} {key[1]}\n\n\xff\n", "dr")
    assert made == Known((), (), False, ())


def test_fingerprints_are_those_of_ssh_keygen(tmp_path: Path, key: list[str]) -> None:
    file = tmp_path / "key.pub"
    file.write_text(" ".join(key))
    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(file)], check=True, capture_output=True, text=True
    ).stdout
    assert shown.split()[1] == fingerprint(base64.b64decode(key[1]))


def test_names_of_servers() -> None:
    assert name_of("DR.example.org", 22) == "dr.example.org"
    assert name_of("fe80::1", 2222) == "[fe80::1]:2222"
