"""A model of `docker compose config`: only the rules that our files need, and no engine.

The container suite compares `docker compose config` itself with the same expected files.
"""

import re

import yaml

RESET = object()
UNITS = {"mb": 2**20, "gb": 2**30}


class Loader(yaml.SafeLoader):
    pass


Loader.add_constructor("!reset", lambda _loader, _node: RESET)


def config(directory, texts, environment):
    """The project as the engine gets it: these files merged in order; `directory` is the project's."""

    def read(text):
        return filled(yaml.load(text, Loader=Loader), environment)

    def service(services, name):
        own = dict(services[name])
        base = own.pop("extends", None)
        if base is None:
            return own
        return merged(service(read((directory / base["file"]).read_text())["services"], base["service"]), own)

    project = {"services": {}}
    for document in map(read, texts):
        document["services"] = {name: service(document["services"], name) for name in document["services"]}
        project = merged(project, {key: value for key, value in document.items() if not key.startswith("x-")})
    started = {name: own for name, own in project["services"].items() if not own.pop("profiles", None)}
    return {
        **project,
        "services": {name: in_long_form(own) for name, own in started.items()},
        "networks": {name: {"name": f"{project['name']}_{name}", **own} for name, own in project["networks"].items()},
        "secrets": {name: {"name": f"{project['name']}_{name}", **own} for name, own in project["secrets"].items()},
    }


def filled(value, environment):
    """Replace `${NAME}` everywhere; KeyError for a name that is not exported."""
    if isinstance(value, dict):
        return {key: filled(entry, environment) for key, entry in value.items()}
    if isinstance(value, list):
        return [filled(entry, environment) for entry in value]
    return re.sub(r"\$\{(\w+)\}", lambda match: environment[match[1]], value) if isinstance(value, str) else value


def merged(below, above):
    """Mappings are merged key by key and lists appended; otherwise `above` wins, and what it resets is removed."""
    if isinstance(below, dict) and isinstance(above, dict):
        together = {key: merged(below[key], above[key]) if key in below else above[key] for key in above}
        return {key: value for key, value in {**below, **together}.items() if value is not RESET}
    if isinstance(below, list) and isinstance(above, list):
        return below + above
    return above


def in_long_form(own):
    """Compose's short forms, as far as we use them, written out."""
    size, unit = re.fullmatch(r"(\d+)([a-z]+)", own["shm_size"]).groups()
    own["shm_size"] = str(int(size) * UNITS[unit])
    own["networks"] = dict.fromkeys(own["networks"])
    own["secrets"] = [{"source": name, "target": f"/run/secrets/{name}"} for name in own["secrets"]]
    own["volumes"] = [
        {**volume, "bind": {}} for volume in own["volumes"]
    ]  # its default there is create_host_path: false
    if "ports" in own:
        own["ports"] = [port_in_long_form(port) for port in own["ports"]]
    if "devices" in own:
        own["devices"] = [{"source": path, "target": path, "permissions": "rwm"} for path in own["devices"]]
    return own


def port_in_long_form(port):
    address, published, target = port.split(":")
    return {
        "mode": "ingress", "host_ip": address, "published": published, "target": int(target), "protocol": "tcp",
    }  # fmt: skip
