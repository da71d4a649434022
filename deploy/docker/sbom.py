"""Prints a bill of materials (CycloneDX): the packages of this environment, and those of Debian."""

import argparse
import json
from importlib.metadata import Distribution, distributions
from pathlib import Path


def python_package(found: Distribution) -> dict[str, object]:
    name, version = found.metadata["Name"], found.version
    licence = found.metadata.get("License-Expression") or found.metadata.get("License") or ""
    if len(licence) > 80 or not licence:  # the text of the licence, or only a classifier
        classifiers = found.metadata.get_all("Classifier") or []
        licence = next((each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License")), "")
    package: dict[str, object] = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{version}",
    }
    if licence:
        package["licenses"] = [{"license": {"name": licence}}]
    return package


def debian_packages() -> list[dict[str, object]]:
    if not Path("/var/lib/dpkg/status").is_file():
        return []
    packages: list[dict[str, object]] = []
    for paragraph in Path("/var/lib/dpkg/status").read_text().split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " "
        )
        if "installed" in fields.get("Status", ""):
            name, version = fields["Package"], fields["Version"]
            purl = f"pkg:deb/debian/{name}@{version}?arch={fields['Architecture']}"
            packages.append({"type": "library", "name": name, "version": version, "purl": purl})
    return packages


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--version", required=True)
    parser.add_argument("--revision", required=True)
    parsed = parser.parse_args()
    python = sorted(map(python_package, distributions()), key=lambda each: str(each["name"]).lower())
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": "alpacamq",
                "version": parsed.version,
                "purl": f"pkg:generic/alpacamq@{parsed.version}?vcs_revision={parsed.revision}",
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": [*python, *sorted(debian_packages(), key=lambda each: str(each["name"]))],
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
