"""scripts/dev/kit_manifest.py: what a kit has, with version, size, hash and licence, and apt's index of its packages."""

import hashlib
import os
import zipfile

import pytest
from streams import tar

import kit_manifest


def wheel(stage, metadata):
    with zipfile.ZipFile(stage / "a-1-py3-none-any.whl", "w") as archive:
        archive.writestr("a-1.dist-info/METADATA", f"Name: a\nVersion: 1\n{metadata}\n")
        archive.writestr("a.py", "x" * 1000)
    return kit_manifest.read_wheel("w", stage / "a-1-py3-none-any.whl")


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ("License-Expression: MIT", "MIT"),
        ("License: BSD", "BSD"),
        ("License: The whole\n text\nClassifier: License :: OSI Approved :: MIT License", "MIT License"),
        ("License: two\n lines", "two lines"),
        ("", "unknown"),
    ],
)
def test_the_licence_of_a_wheel(tmp_path, metadata, licence):
    found = wheel(tmp_path, metadata)
    assert (found.what, found.version, found.licence) == ("a", "1", licence)
    assert found.installed > 1000


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of the distribution, by a dpkg-deb that answers with these."""

    def make(copyright_file):
        content = {} if copyright_file is None else {"./usr/share/doc/b/copyright": copyright_file}
        (tmp_path / "tree").write_bytes(tar(content).read())
        (tmp_path / "control").write_text("Package: b\nVersion: 2-1\nInstalled-Size: 3\nDescription: short\n long\n")
        tool = tmp_path / "dpkg-deb"
        tool.write_text(f"#!/bin/sh\n[ $1 = --field ] && exec cat '{tmp_path}/control'\nexec cat '{tmp_path}/tree'\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        (tmp_path / "debs").mkdir(exist_ok=True)
        (tmp_path / "debs/b.deb").write_bytes(b"package")
        return kit_manifest.read_deb("debs/b.deb", tmp_path / "debs/b.deb")

    return make


@pytest.mark.parametrize(
    ("copyright_file", "licence"),
    [
        (b"License: GPL-2\n text\nLicense: MIT\nLicense: GPL-2\n", "GPL-2; MIT"),
        (b"It is free.\n", "unknown"),
        (None, "unknown"),
    ],
)
def test_the_licence_of_a_package_of_the_distribution(package, copyright_file, licence):
    found = package(copyright_file)
    assert (found.what, found.version, found.licence, found.installed) == ("b", "2-1", licence, 3072)


def test_the_manifest_and_the_index_of_apt(tmp_path, package):
    package(b"License: MIT\n")
    (tmp_path / "project.tar.gz").write_bytes(b"project")
    lines = ["debs/b.deb\t\t\t\n", "project.tar.gz\tverl-regress\t1.0\tApache-2.0\n"]
    text = kit_manifest.manifest(tmp_path, ["machine=x86_64"], kit_manifest.read(tmp_path, lines))
    names = ("debs/b.deb", "debs/Packages", "project.tar.gz")
    digest = {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in names}
    index = (tmp_path / "debs/Packages").read_text()
    assert index == (
        "Package: b\nVersion: 2-1\nInstalled-Size: 3\nDescription: short\n long\n"
        f"Filename: ./b.deb\nSize: 7\nSHA256: {digest['debs/b.deb']}\n\n"
    )
    assert text == (
        f"# machine\tx86_64\n# bytes\t{14 + len(index)}\n# installed\t3079\n# path\twhat\tversion\tbytes\tsha256\tlicence\n"
        f"debs/Packages\tindex of the packages\t-\t{len(index)}\t{digest['debs/Packages']}\t-\n"
        f"debs/b.deb\tb\t2-1\t7\t{digest['debs/b.deb']}\tMIT\n"
        f"project.tar.gz\tverl-regress\t1.0\t7\t{digest['project.tar.gz']}\tApache-2.0\n"
    )
