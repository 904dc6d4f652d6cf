"""Programs: what runs in the two sandboxes of ``unit_tests``, and how values travel between
them.

- The tests run in one sandbox, the policy's code in another. What travels is plain data as JSON,
  and names of objects that stay where the code is, so no ``__eq__`` of the policy's reaches a test
  that compares a value with a plain one.
- In the tests each function and class of the policy's is a stand-in: what is asked of it is looked
  up in a table of results. What is not there yet is told, done in the other sandbox, and the tests
  run again. Until then it is ``Pending``, and a statement that needs it is passed over, so that one
  round asks for all that does not depend on a result.
- A text that names a class, or is given an object, has a history: each operation names the one
  before. The code's sandbox does it on objects that saw this history and no other, in a namespace
  of their own. In any other text a call is known by its arguments alone.
- Objects of a class that both sides define (a list's nodes) travel by value, as a table of records.
- Operations and results are read in the sandboxes alone: the process that owns these passes bytes
  on.
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
    if type(value).__name__ in recorded:
        if id(value) not in places:
            places[id(value)] = len(records)
            records.append(value)
        return ["r", places[id(value)]]
    return ["o", name_of(value)]

def packed(values, classes):
    # these and the records that they lead to, each once, however deep and in circles
    global recorded, records, places
    recorded, records, places = classes, [], {}
    told, fields = [pack(one) for one in values], []
    for one in records:
        own = [[key, pack(inner)] for key, inner in vars(one).items()]
        fields.append([type(one).__name__, own])
    return [*told, fields]

def unpacked(told):
    global records
    *values, fields = told
    records = [blank(name) for name, _ in fields]
    for one, (_, inner) in zip(records, fields):
        for key, value in inner:
            # no value of the code's stands in a method's place
            if not callable(getattr(type(one), key, None)):
                vars(one)[key] = unpack(value)
    return [unpack(one) for one in values]

def unpack(value):
    if not isinstance(value, list):
        return value
    name, inner = value
    if name == "o":
        return named(tuple(inner))
    if name == "r":
        return records[inner]
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
import asyncio, inspect, itertools, json, operator, os, sys
calls = json.loads(open("calls.json").read())
sources = [open(name).read() for name in ("setup.py", "solution.py")]
told = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
# of what has no end
MOST = 10_000
OWN = {"__bool__": bool, "__str__": str, "__repr__": repr, "__hash__": hash, "__int__": int}
OWN.update(__len__=len, __float__=float, __next__=next, __call__=lambda f, *a, **k: f(*a, **k))

def tell(number, kind, value, changed=None):
    data = memoryview((json.dumps([number, kind, value, changed]) + "\\n").encode())
    while data:
        data = data[os.write(told, data):]

def told_of(error):
    kinds = [kind for kind in type(error).__mro__ if kind.__module__ in ("builtins", "solution")]
    return [kind.__name__ for kind in kinds], str(error)[:500]

class Stays(Exception):
    # an object in a text that has no history
    pass

class World:
    # the code, and the objects of one history, by the operation that first gave each
    def __init__(self):
        self.space = {"__name__": "solution"}
        self.objects, self.names = {}, {}
        self.failure = None
        try:
            for source in sources:
                exec(compile(source, "solution.py", "exec"), self.space)
        except BaseException as error:
            self.failure = told_of(error)

    def find(self, target):
        if not isinstance(target, str):
            return self.objects[tuple(target)]
        if target not in self.space:
            raise NameError("name %r is not defined" % target)
        return self.space[target]

    def name_of(self, value):
        if self is plain:
            raise Stays(type(value).__name__)
        if id(value) not in self.names:
            name = number, len(self.objects) - self.before
            self.names[id(value)] = name
            self.objects[name] = value
        return self.names[id(value)]

    def does(self, verb, target, args, keywords):
        if verb == "call":
            return self.find(target)(*args, **keywords)
        owner, name = self.find(target[0]), target[1]
        if verb == "iter":
            return list(itertools.islice(iter(owner), MOST))
        if verb == "is_a":
            return isinstance(owner, self.find(name))
        if name in OWN:
            return OWN[name](owner, *args, **keywords)
        if name[:3] == "__r" and name != "__rshift__":
            return getattr(operator, "__" + name[3:])(args[0], owner)
        if hasattr(operator, name) and name[:2] == "__":
            return getattr(operator, name)(owner, *args)
        if verb == "method":
            return getattr(owner, name)(*args, **keywords)
        return {"get": getattr, "set": setattr, "del": delattr}[verb](owner, name, *args)

    def makes(self, call):
        global world
        world, self.before = self, len(self.objects)
        if self.failure is not None:
            return "raised", self.failure, None
        try:
            args, keywords = unpacked(call[3])
            kind, value = "gave", self.does(call[1], call[2], args, keywords)
            if inspect.iscoroutine(value):
                kind, value = "awaited", asyncio.run(value)
            told = packed([value], call[4])
        except Stays as error:
            return "object", str(error), None
        except BaseException as error:
            return "raised", told_of(error), None
        try:
            after = json.loads(json.dumps(packed([args, keywords], call[4])))
        except BaseException:
            return kind, told, None
        return kind, told, None if after == call[3] else after

name_of = lambda value: world.name_of(value)
named = lambda name: world.objects[name]
blank = lambda name: object.__new__(world.find(name))

def world_after(parent):
    # one that stands there, or a new one, to which all of the history happens once more
    global number
    if parent in worlds:
        return worlds.pop(parent)
    history, now = [], number
    while parent != -1:
        history.append(parent)
        parent = calls[parent][0]
    again = World()
    for number in reversed(history):
        again.makes(calls[number])
    number = now
    return again

worlds = {}
plain = world = World()
for number, call in enumerate(calls):
    one = plain if call[0] is None else world_after(call[0])
    tell(number, *one.makes(call))
    if one is not plain:
        worlds[number] = one
"""
)
"""Does the operations of ``calls.json`` with ``solution.py``; a line of output each."""

TESTS = (
    _VALUES
    + """
import ast, builtins, json, random

given = json.loads(open("tests.json").read())
calls = json.loads(open("calls.json").read())
known = len(calls)
results = [None] * known
for line in open("results", "rb"):
    # the code may have written it itself: what it gives or raises is all that it can choose
    try:
        number, kind, value, changed = json.loads(line)
        is_kind = kind in ("gave", "awaited", "object", "raised")
        if results[number] is None and number >= 0 and is_kind:
            results[number] = kind, value, changed
    except Exception:
        continue
lost = "raised", [["RuntimeError"], given["lost"]], None
numbers = {json.dumps(call): number for number, call in enumerate(calls)}
MOST = 2000
# loops of a test's would take them for the end of what they go through (PEP 479)
ENDS = StopIteration, StopAsyncIteration

class Unknown(BaseException):
    def __init__(self):
        text.wait()

class Enough(BaseException):
    pass

class Text:
    # what the run of one text has come to
    def __init__(self, has_history):
        self.has_history = has_history
        self.last = -1
        self.waits = 0
        self.needs_history = False
        self.objects, self.errors = {}, {}
        # whether what comes is of the test's own making: of a class, and no result of a call
        self.makes = False

    def wait(self):
        # a loop that only a result ends, as one until there is None, goes so far in a round
        self.waits += 1
        if self.waits > MOST:
            raise Enough()

def is_class(target):
    return isinstance(target, str) and target[:1].isupper()

def change(old, new):
    # what a call changed in place
    if isinstance(old, list) and isinstance(new, list):
        old[:] = new
    elif isinstance(old, (dict, set)) and type(old) is type(new) and old != new:
        old.clear()
        old.update(new)
    elif isinstance(old, bytearray) and isinstance(new, bytes):
        old[:] = new
    elif type(old).__name__ in text.classes and type(old) is type(new):
        vars(old).clear()
        vars(old).update(vars(new))

async def once(value):
    return value

def ask(verb, target, args=(), keywords={}):
    parent = text.last if text.has_history else None
    call = [parent, verb, target, packed([args, keywords], text.classes), text.classes]
    key = json.dumps(call)
    number = numbers.setdefault(key, len(calls))
    if number == len(calls):
        calls.append(call)
    if text.has_history:
        text.last = number
    if number >= known:
        text.wait()
        return Pending((number, 0) if verb == "call" and is_class(target) else None)
    kind, value, changed = results[number] or lost
    if kind == "object":
        text.needs_history = True
        raise Unknown()
    if kind == "raised":
        raise raised(*value)
    of_class = is_class(target if verb == "call" else target[0])
    text.makes = of_class and verb in ("call", "get")
    [value] = unpacked(value)
    # what computes something from its argument, and changes that too, could make both agree
    if changed is not None and value is None:
        new_args, new_keywords = unpacked(changed)
        for old, new in zip(args, new_args):
            change(old, new)
        for name, old in keywords.items():
            change(old, new_keywords.get(name))
    return once(value) if kind == "awaited" else value

def raised(names, message):
    kinds = []
    for name in names:
        kind = text.errors.get(name) or getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, ENDS):
            break
        if isinstance(kind, type) and issubclass(kind, Exception):
            kinds.append(kind)
            if name not in text.errors:
                break
    try:
        kind = type(kinds[0].__name__, tuple(kinds), {}) if kinds[1:] else kinds[0]
        return kind(message)
    except (IndexError, TypeError):
        # made of more than a text, as a UnicodeDecodeError is: the ValueError that it is follows
        return raised(names[1:], message) if names else RuntimeError(message)

def known_one(value):
    if type(value) is Pending:
        raise Unknown()
    return value

SIDES = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()
ORDER = "lt le gt ge".split()
# python itself reads what these give
READ = "bool len str repr hash contains int float index".split()
OTHERS = "call next getitem setitem delitem neg pos abs invert enter exit".split()
# a plain value that is asked one of these is often asked with what is expected of it
TELLING = {"__%s__" % one for one in ORDER + SIDES + ["r" + one for one in SIDES] + ["contains"]}
TELLING.update("count difference endswith find index intersection isdisjoint issubset".split())
TELLING.update("issuperset removeprefix removesuffix rfind rindex startswith union".split())
TELLING.add("symmetric_difference")
EVERY = READ + OTHERS + ORDER + SIDES + ["r" + one for one in SIDES] + ["eq", "ne"]

class Pending:
    # what is asked of it and is no method of a class raises Unknown; so does each look at it
    def __init__(self, name):
        object.__setattr__(self, "_unit_tests_name", name)
    def __getattribute__(self, name):
        raise Unknown()
    def __setattr__(self, name, value):
        raise Unknown()

class Proxy:
    # an object of the code's, which has all other attributes
    __slots__ = ("_unit_tests_name", "_unit_tests_made")
    def __init__(self, name, made):
        object.__setattr__(self, "_unit_tests_name", name)
        object.__setattr__(self, "_unit_tests_made", made)
    def __getattr__(self, name):
        value = ask("get", [name_of(self), name])
        if type(value) is Proxy:
            # it may be a method, which is called later
            keep_to_itself(self, name)
        return value
    def __setattr__(self, name, value):
        ask("set", [name_of(self), name], (value,))
    def __delattr__(self, name):
        ask("del", [name_of(self), name])
    def __iter__(self):
        return iter(known_one(ask("iter", [name_of(self), ""])))

def operation(short):
    name = "__%s__" % short
    def method(self, *args, **keywords):
        if short == "exit":
            # an exception of the test's stays there
            args = None, None, None
        if short in ("eq", "ne"):
            other = known_one(args[0])
            if type(other) is not Proxy or not (is_made(self) or is_made(other)):
                return same(self, other) == (short == "eq")
        elif short in ORDER and type(known_one(args[0])) is not Proxy:
            return NotImplemented
        else:
            keep_to_itself(self, name)
        value = ask("method", [name_of(self), name], args, keywords)
        return known_one(value) if short in READ else value
    return method

def unknown(*_, **__):
    raise Unknown()

for short in EVERY:
    setattr(Proxy, "__%s__" % short, operation(short))
for short in EVERY + ["iter", "await", "format"]:
    setattr(Pending, "__%s__" % short, unknown)

class Class:
    # of the code's; a name with a capital
    def __init__(self, name):
        self.__name__ = name
    def __call__(self, *args, **keywords):
        return ask("call", self.__name__, args, keywords)
    def __getattr__(self, name):
        return ask("get", [self.__name__, name])
    def __instancecheck__(self, value):
        is_one = type(known_one(value)) is Proxy
        return is_one and known_one(ask("is_a", [name_of(value), self.__name__]))

def name_of(value):
    name = None
    if type(value) in (Proxy, Pending):
        name = object.__getattribute__(value, "_unit_tests_name")
        if name is None:
            raise Unknown()
    if name is None:
        raise Unplain(type(value).__name__ + " is no plain value")
    return list(name)

def named(name):
    key = name, text.makes
    if key not in text.objects:
        text.objects[key] = Proxy(*key)
    return text.objects[key]

def is_made(value):
    return object.__getattribute__(value, "_unit_tests_made")

def same(one, other):
    # what `is` asks: an object that was made may come back as what a call gave
    one, other = known_one(one), known_one(other)
    if type(one) is Proxy and type(other) is Proxy:
        return name_of(one) == name_of(other)
    return one is other

def keep_to_itself(value, name):
    # An object in the place of a plain value would be told what is expected of it.
    if name in TELLING and not is_made(value):
        raise TypeError("an object that a call gave is not asked for its " + name)

def method_of(value, name):
    # asks for no attribute that is about to be called
    if type(value) is Class:
        target = value.__name__
    elif type(value) in (Proxy, Pending):
        target = name_of(value)
    else:
        return getattr(value, name)
    def method(*args, **keywords):
        if type(value) is Proxy:
            keep_to_itself(value, name)
        return ask("method", [target, name], args, keywords)
    return method

def stand_in(name):
    if is_class(name):
        return Class(name)
    def call(*args, **keywords):
        return ask("call", name, args, keywords)
    call.__name__ = name
    return call

class Soft(ast.NodeTransformer):
    # a statement whose call is not known yet does not keep the next one from being asked for
    def soft(self, node):
        node = self.generic_visit(node)
        handler = ast.ExceptHandler(ast.Name("__Unknown", ast.Load()), None, [ast.Pass()])
        return ast.Try([node], [handler], [], [])
    visit_Assert = visit_Assign = visit_AnnAssign = visit_AugAssign = soft
    def visit_Expr(self, node):
        # a text there may be what must come first
        return node if isinstance(node.value, ast.Constant) else self.soft(node)
    def visit_Compare(self, node):
        node = self.generic_visit(node)
        if [type(one) for one in node.ops] not in ([ast.Is], [ast.IsNot]):
            return node
        call = ast.Call(ast.Name("__same", ast.Load()), [node.left, *node.comparators], [])
        return call if isinstance(node.ops[0], ast.Is) else ast.UnaryOp(ast.Not(), call)
    def visit_Call(self, node):
        node = self.generic_visit(node)
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr[:2] != "__":
            of = [called.value, ast.Constant(called.attr)]
            node.func = ast.Call(ast.Name("__method_of", ast.Load()), of, [])
        return node

def bound(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name

def names_of(tree):
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}

def blank(name):
    return object.__new__(text.space[name])

def run(source, has_history):
    global text
    tree = ast.parse(source)
    free = names_of(tree) - set(bound(tree)) - set(dir(builtins))
    caught = (node.type for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))
    errors = {name for kind in caught if kind for name in names_of(kind)} & free
    text = Text(has_history or any(map(is_class, free - errors)))
    text.errors = {name: type(name, (Exception,), {}) for name in errors}
    text.classes = sorted(one.name for one in ast.walk(tree) if isinstance(one, ast.ClassDef))
    text.space = space = {name: stand_in(name) for name in free}
    space.update(text.errors, __name__="tests", __Unknown=Unknown, __method_of=method_of)
    space["__same"] = same
    code = compile(ast.fix_missing_locations(Soft().visit(tree)), "tests.py", "exec")
    # the same calls in each round
    random.seed(0)
    problem = None
    try:
        exec(code, space)
    except (Unknown, Enough):
        pass
    except BaseException as error:
        problem = error
    if text.needs_history and not text.has_history:
        return run(source, True)
    # an assert that asked for a call may have made what a later line lacks
    if problem and (not text.waits or isinstance(problem, (Unplain, ImportError))):
        return [False, (type(problem).__name__ + ": " + str(problem))[:300]]
    return None if text.waits else [True, ""]

def fault_of_setup():
    # looked for here, since the code could feign it where it runs
    try:
        exec(compile(given["code_setup"], "setup.py", "exec"), {"__name__": "solution"})
    except BaseException as error:
        return "code_setup: " + type(error).__name__ + ": " + str(error)
    return ""

fault = "" if known else fault_of_setup()
verdicts = [
    [False, fault] if fault else run(given["setup"] + "\\n" + one, False) for one in given["tests"]
]
with open("calls.json", "w") as file:
    json.dump(calls, file)
with open("verdicts.json", "w") as file:
    json.dump([verdicts, len(calls) - known], file)
"""
)
"""Runs the tests of ``tests.json`` on the ``results`` of ``calls.json``, and adds the operations
that are missing there; ``verdicts.json`` has what passed, and how many were missing.
"""
