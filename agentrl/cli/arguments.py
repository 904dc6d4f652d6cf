"""Arguments: numbers of the command line, with their bounds."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

Count = Annotated[int, Parameter(validator=Number(gte=0))]
Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
PositiveCount = Annotated[int, Parameter(validator=Number(gte=1))]
Seconds = Annotated[float, Parameter(validator=Number(gt=0))]
