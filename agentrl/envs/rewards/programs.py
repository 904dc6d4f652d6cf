"""Programs: what runs in the two sandboxes of ``unit_tests``, and how values travel between
them.

- The tests run in one sandbox, the policy's code in another. What travels is plain data as JSON, so
  no object of the policy's, with an ``__eq__`` of its own, reaches a test.
- In the tests each function of the policy's is a stand-in: it looks its call up in a table of
  results. A call that is not there yet is told, made in the other sandbox, and the tests run again.
- Calls and results are read in the sandboxes alone: the process that owns these passes bytes on.
"""

from __future__ import annotations

_VALUES = """
# no handler of a test's takes it for what it waits for
class Unplain(BaseException):
    pass

def pack(value):
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if isinstance(value, int):
        # of any number of digits, in linear time
        return ["i", hex(int(value))]
    if isinstance(value, float):
        return ["f", repr(float(value))]
    if isinstance(value, complex):
        return ["c", repr(complex(value))]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (bytes, bytearray)):
        return ["b", list(bytes(value))]
    for name, kinds in (("l", list), ("t", tuple), ("s", set), ("z", frozenset)):
        if isinstance(value, kinds):
            return [name, [pack(one) for one in value]]
    if isinstance(value, dict):
        return ["d", [[pack(key), pack(one)] for key, one in value.items()]]
    raise Unplain(type(value).__name__ + " is no plain value")

def unpack(value):
    if not isinstance(value, list):
        return value
    name, inner = value
    if name == "i":
        return int(inner, 16)
    if name in "fc":
        return {"f": float, "c": complex}[name](inner)
    if name == "b":
        return bytes(inner)
    if name == "d":
        return {unpack(key): unpack(one) for key, one in inner}
    kinds = {"l": list, "t": tuple, "s": set, "z": frozenset}
    return kinds[name](unpack(one) for one in inner)
"""

CALLS = (
    _VALUES
    + """
import json, os, sys
calls = json.loads(open("calls.json").read())
source = open("solution.py").read()
told = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

def tell(number, kind, value):
    data = memoryview((json.dumps([number, kind, value]) + "\\n").encode())
    while data:
        data = data[os.write(told, data):]

def told_of(error):
    kinds = type(error).__mro__
    return [kind.__name__ for kind in kinds if kind.__module__ == "builtins"], str(error)[:500]

space = {"__name__": "solution"}
failure = None
try:
    exec(compile(source, "solution.py", "exec"), space)
except BaseException as error:
    failure = told_of(error)
for number, (name, args, keywords) in enumerate(calls):
    if failure is not None:
        tell(number, "raised", failure)
        continue
    try:
        function = space[name]
    except KeyError:
        tell(number, "raised", [["NameError"], "name %r is not defined" % name])
        continue
    try:
        value = pack(function(*unpack(args), **unpack(keywords)))
    except BaseException as error:
        tell(number, "raised", told_of(error))
    else:
        tell(number, "gave", value)
"""
)
"""Makes the calls of ``calls.json`` in ``solution.py``; a line of output a call."""

TESTS = (
    _VALUES
    + """
import ast, builtins, json, random

given = json.loads(open("tests.json").read())
calls = json.loads(open("calls.json").read())
results = [None] * len(calls)
for line in open("results", "rb"):
    # the code may have written it itself: what it gives or raises is all that it can choose
    try:
        number, kind, value = json.loads(line)
        if results[number] is None and number >= 0 and kind in ("gave", "raised"):
            results[number] = kind, value
    except Exception:
        continue
lost = "raised", [["RuntimeError"], given["lost"]]
table = {json.dumps(call): own or lost for call, own in zip(calls, results)}
asked = []
# loops of a test's would take them for the end of what they go through (PEP 479)
ENDS = StopIteration, StopAsyncIteration

class Unknown(BaseException):
    pass

def raised(names, text):
    for kind in (getattr(builtins, name, None) for name in names):
        if isinstance(kind, type) and issubclass(kind, ENDS):
            break
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                return kind(text)
            except TypeError:
                # made of more than a text, as a UnicodeDecodeError is; the ValueError that it is
                # follows
                continue
    return RuntimeError(text)

def stand_in(name):
    def call(*args, **keywords):
        made = [name, pack(args), pack(keywords)]
        key = json.dumps(made)
        if key not in table:
            asked.append(key)
            raise Unknown()
        kind, value = table[key]
        if kind == "gave":
            return unpack(value)
        raise raised(*value)
    call.__name__ = name
    return call

class Soft(ast.NodeTransformer):
    # an assert whose call is not known yet does not keep the next one from being asked for
    def visit_Assert(self, node):
        handler = ast.ExceptHandler(ast.Name("__Unknown", ast.Load()), None, [ast.Pass()])
        return ast.Try([node], [handler], [], [])

def bound(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name

def run(text, setup):
    tree = ast.parse(setup + "\\n" + text)
    own = set(bound(tree)) | set(dir(builtins))
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} - own
    space = {name: stand_in(name) for name in names}
    space.update(__name__="tests", __Unknown=Unknown)
    before = len(asked)
    code = compile(ast.fix_missing_locations(Soft().visit(tree)), "tests.py", "exec")
    # the same calls in each round
    random.seed(0)
    try:
        exec(code, space)
    except Unknown:
        return None
    except BaseException as error:
        # an assert that asked for a call may have made what a later line lacks
        if len(asked) == before or isinstance(error, (Unplain, ImportError)):
            return [False, (type(error).__name__ + ": " + str(error))[:300]]
    return None if len(asked) > before else [True, ""]

verdicts = [run(text, given["setup"]) for text in given["tests"]]
new = [json.loads(key) for key in dict.fromkeys(asked)]
with open("calls.json", "w") as file:
    json.dump(calls + new, file)
with open("verdicts.json", "w") as file:
    json.dump([verdicts, len(new)], file)
"""
)
"""Runs the tests of ``tests.json`` on the ``results`` of ``calls.json``, and adds the calls that
are missing there; ``verdicts.json`` has what passed, and how many were missing.
"""
