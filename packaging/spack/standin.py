"""Runs the recipe of packaging/spack without Spack: a stand-in takes the place of Spack's
modules and notes what the recipe says. For each kind of build it prints, a line each, what
make is told.

    python3 standin.py PACKAGE_PY
"""

import sys
import types


class Node:
    """A dependency, a variant or an environment: whatever is asked of it, it has."""

    def __init__(self, **has):
        self.__dict__.update(has)


class Spec:
    """A concrete spec of the package."""

    def __init__(self, variants, archs=()):
        self.on = variants
        self.variants = {"cuda_arch": Node(value=archs)}

    def satisfies(self, text):
        known = {"mpi", "cuda"}
        if text[0] not in "+~" or text[1:] not in known:
            raise ValueError("satisfies: " + text)
        return (text[1:] in self.on) == (text[0] == "+")

    def __getitem__(self, name):
        if name not in self.on:
            raise KeyError(name + " is no dependency of this spec")
        return {"mpi": Node(mpicc="/mpi/bin/mpicc"), "cuda": Node(prefix=Node(bin="/cuda/bin"))}[name]


class When:
    """A condition: of one directive, or of those in a with block."""

    def __init__(self, text):
        self.text = text

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


said = []


def directive(name):
    def say(*args, **named):
        said.append((name, args, named))

    return say


def load(path):
    package = types.ModuleType("spack.package")
    for name in ["license", "version", "variant", "depends_on", "conflicts"]:
        setattr(package, name, directive(name))
    package.when = When
    package.join_path = lambda *parts: "/".join(parts)
    made = []
    package.make = lambda *args: made.append(args)
    systems = {
        "spack": types.ModuleType("spack"),
        "spack.package": package,
        "spack_repo": types.ModuleType("spack_repo"),
        "spack_repo.builtin": types.ModuleType("spack_repo.builtin"),
        "spack_repo.builtin.build_systems": types.ModuleType("spack_repo.builtin.build_systems"),
    }
    for name, of in [("makefile", "MakefilePackage"), ("cuda", "CudaPackage")]:
        module = types.ModuleType("spack_repo.builtin.build_systems." + name)
        setattr(module, of, type(of, (), {"prefix": "/prefix"}))
        systems[module.__name__] = module
    sys.modules.update(systems)
    scope = {"__name__": "package"}
    with open(path, encoding="utf-8") as f:
        exec(compile(f.read(), path, "exec"), scope)
    return scope["Ringattn"], made


def main():
    recipe, made = load(sys.argv[1])
    directives = [name for name, _, _ in said]
    for needed in ["license", "version", "variant", "depends_on"]:
        if needed not in directives:
            sys.exit("standin.py: the recipe has no " + needed)
    environment = {}
    recipe().setup_build_environment(Node(set=environment.__setitem__))
    if environment.get("GOTOOLCHAIN") != "local":
        sys.exit("standin.py: Go may fetch another Go")
    for on, archs in [({"mpi"}, ()), (set(), ()), ({"mpi", "cuda"}, ("80", "90"))]:
        r = recipe()
        r.spec = Spec(on, archs)
        print("\t".join(r.build_targets))
        print("\t".join(r.install_targets))
    r.check()
    print("\t".join(made[0]))


main()
