"""Unit test sides: what runs in the two sandboxes of ``unit_tests``, and how values travel between
them.

- ``tests_side`` runs the tests in one sandbox, ``code_side`` the policy's code in another. What
  travels is plain data as JSON (``plain_values``), and names of objects that stay where the code
  is, so no ``__eq__`` of the policy's reaches a test that compares a value with a plain one.
- In the tests each function and class of the policy's is a stand-in (``stand_ins``): what is asked
  of it is looked up in a table of results. What is not there yet is told, done in the other
  sandbox, and the tests run again. Until then it is ``Pending``, and a statement that needs it is
  passed over, so that one round asks for all that does not depend on a result (``single_test``).
- A text that names a class, or is given an object, has a history: each operation names the one
  before. The code's sandbox does it on objects that saw this history and no other, in a namespace
  of their own. In any other text a call is known by its arguments alone.
- Objects of a class that both sides define (a list's nodes) travel by value, as a table of records.
- Operations and results are read in the sandboxes alone: the process that owns these passes bytes
  on.

An operation is ``[parent, verb, target, arguments, classes]``: the number of the one before it, -1
for none, or None where there is no history; ``call``, ``method``, ``get``, ``set``, ``del``,
``iter`` or ``is_a``; a function's or class's name, or an owner's and an attribute's; what
``packed`` gives of its positional and its named arguments; and the names of the test's classes. A
result is ``[number, kind, value, changed]``, with a kind of ``RESULTS`` and what the operation
changed in its arguments.

The modules need the standard library alone, and import each other by relative names: a sandbox has
them as the package ``unit_test_sides`` in its folder.
"""

RESULTS = ("gave", "awaited", "object", "raised")
