"""`python -m benchmarks.cassandra_install`: Apache Cassandra and its Python driver into the cache.

Java and Maven are Debian's (12: Java 17, which Cassandra 5.0 supports), Cassandra is from Maven
Central, the driver from PyPI.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import need, run

VERSION = "5.0.6"
DRIVER = "3.30.1"
#: Of the names and contents of all jars: a dependency that resolves to something else is noticed.
DIGEST = "ca24b0e8547b5bc7101daf8d43396be10b4df0cc4aaf2687425d1184e18f0cbf"
JAVA = "openjdk-17-jre-headless"
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>mirrord</groupId><artifactId>cassandra</artifactId><version>1</version>
<packaging>pom</packaging>
<dependencies><dependency><groupId>org.apache.cassandra</groupId>
<artifactId>cassandra-all</artifactId><version>{VERSION}</version></dependency></dependencies>
</project>
"""
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies"


def java() -> Path:
    """The program `java` of version 17."""
    for _ in range(2):
        if found := sorted(Path("/usr/lib/jvm").glob("java-17-openjdk-*/bin/java")):
            return found[0]
        run("apt-get", "-q", "update")
        run("apt-get", "-q", "install", "-y", "--no-install-recommends", JAVA)
    raise AssertionError(f"{JAVA} does not have java")


def jars() -> Path:
    """The folder of Cassandra's jars."""
    there = _cache() / f"cassandra-{VERSION}"
    if not there.exists():
        java()
        maven = need("mvn", "maven")
        with tempfile.TemporaryDirectory(dir=_cache()) as name:
            inside, made = Path(name), Path(name) / "jars"
            (inside / "pom.xml").write_text(POM)
            print(f"fetching Cassandra {VERSION} from Maven Central", flush=True)
            # -C: a file whose checksum is wrong is an error.
            options = (f"-Dmaven.repo.local={inside / 'm2'}", f"-DoutputDirectory={made}")
            run(maven, "-q", "-B", "-C", "-f", inside / "pom.xml", *options,
                "-DincludeScope=runtime", PLUGIN)  # fmt: skip
            found = _digest(made)
            assert found == DIGEST, f"the jars are not those that were pinned: {found}"
            made.rename(there)
    return there


def driver() -> Path:
    """The folder of the Python driver, for PYTHONPATH."""
    there = _cache() / f"cassandra-driver-{DRIVER}-{sys.implementation.cache_tag}"
    if not there.exists():
        made = Path(tempfile.mkdtemp(dir=_cache()))
        try:
            print(f"fetching cassandra-driver {DRIVER} from PyPI", flush=True)
            run(sys.executable, "-m", "pip", "-q", "install", "--only-binary", ":all:",
                "--target", made, f"cassandra-driver=={DRIVER}")  # fmt: skip
            made.rename(there)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return there


def _cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    made = base / "mirrord" / "cassandra"
    made.mkdir(parents=True, exist_ok=True)
    return made


def _digest(folder: Path) -> str:
    whole = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        whole.update(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n".encode())
    return whole.hexdigest()


if __name__ == "__main__":
    print(java(), jars(), driver(), sep="\n")
