"""What the coordinator, the generator and the receivers say to each other: the control plane.

Each message is a small frozen model, sent as JSON and validated on arrival; a few carry bytes beside it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

PROTOCOL = 2

Role = Literal["generator", "receiver"]
Natural = Annotated[int, Field(ge=0)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Expectation(_Message):
    """The configuration that a process was told to insist on, and the file that says so."""

    path: str
    config: dict[str, Any]


class Hello(_Message):
    """First words of a generator or receiver."""

    type: Literal["hello"] = "hello"
    role: Role
    protocol: int
    version: str
    pid: int
    host: str
    expected: Expectation | None = None


class Welcome(_Message):
    """The coordinator's answer: the configuration and the run's id; a field h follows as int32 bytes."""

    type: Literal["welcome"] = "welcome"
    config: dict[str, Any]
    digest: str
    run: Natural


class Opened(_Message):
    """The generator has opened its couplings and says how many spins they have."""

    type: Literal["opened"] = "opened"
    n: Natural


class Resolved(_Message):
    """The configuration with nothing left open, after the couplings told their n."""

    type: Literal["resolved"] = "resolved"
    n: Natural
    first_pass: Natural = 0
    """The pass to begin with."""
    rows: tuple[Natural, Natural] | None = None
    """The first row and the row after the last, if the receiver of this generator has not all of them."""
    checkpoints: list[str] = []
    """Files to restore the state from, the newest first."""


class Restored(_Message):
    """The receiver has restored its state from a checkpoint of this problem."""

    type: Literal["restored"] = "restored"
    next_pass: Natural
    input_hash: str


class Listening(_Message):
    """The receiver waits for the generator's data connections here."""

    type: Literal["listening"] = "listening"
    host: str
    port: int


class DeviceRing(_Message):
    """The receiver's rings in GPU memory: a CUDA IPC handle, and the address for the process that has it."""

    type: Literal["device_ring"] = "device_ring"
    memory: str
    process: Natural
    address: Natural
    queues: Natural
    places: Natural


class Join(_Message):
    """First words on a data connection: which queue it is to carry, of which run and configuration."""

    type: Literal["join"] = "join"
    run: Natural
    queue: Natural
    digest: str
    address: str = ""
    """Where frames come from if not over this connection: a UDP port or a MAC."""


class Joined(_Message):
    """The receiver's answer to Join; frames follow."""

    type: Literal["joined"] = "joined"
    address: str = ""
    """Where they are to be sent if not over this connection: a UDP port or a MAC."""
    window: Natural = 0
    """How many of them may be on the way there at most."""


class Compiling(_Message):
    """What is being compiled or prepared, in words for the user."""

    type: Literal["compiling"] = "compiling"
    what: str


class Busy(_Message):
    """What this process does so long, in words; sent again and again, so that it is not taken for stuck."""

    type: Literal["busy"] = "busy"
    what: str


class Ready(_Message):
    """Everything is allocated and compiled; bytes of payload a second that this process reached alone."""

    type: Literal["ready"] = "ready"
    payload_per_second: float


class Begin(_Message):
    """Pass `pass_index` is released."""

    type: Literal["begin"] = "begin"
    pass_index: Natural


class Progress(_Message):
    """Frames added so far in the current pass."""

    type: Literal["progress"] = "progress"
    pass_index: Natural
    frames: Natural


class PassSent(_Message):
    """Every frame of the pass is on its queue; after the first, what the couplings hash to.

    A generator of some of the rows cannot tell; it says what its tiles above and below the diagonal sum to.
    """

    type: Literal["pass_sent"] = "pass_sent"
    pass_index: Natural
    frames: Natural
    couplings_hash: str | None = None
    tile_sums: tuple[Natural, Natural] | None = None


class PassReceived(_Message):
    """Every PASS_END has come and every frame before it has been added."""

    type: Literal["pass_received"] = "pass_received"
    pass_index: Natural
    frames: Natural
    dropped: Natural
    duplicated: Natural
    rejected: dict[str, int]
    resent: Natural = 0
    """Frames that were asked for again."""
    receive_s: float
    drain_s: float


class Finish(_Message):
    """The pass counts: measure it, and advance the state unless it was the last."""

    type: Literal["finish"] = "finish"
    pass_index: Natural
    advance: bool


class Updated(_Message):
    """Energies of the signs that entered the pass, checksum of the signs after it."""

    type: Literal["updated"] = "updated"
    pass_index: Natural
    two_energy: list[int]
    checksum: str
    update_s: float
    checkpoint_wait_s: float
    """Part of update_s: the update had to wait for a checkpoint of the state before it."""


class Save(_Message):
    """Write the state as it is now, which `next_pass` starts from, while that pass goes on."""

    type: Literal["save"] = "save"
    path: str
    next_pass: Natural
    input_hash: str


class Saved(_Message):
    """The checkpoint before `next_pass` is on disk."""

    type: Literal["saved"] = "saved"
    next_pass: Natural
    size: Natural
    seconds: float


class Drop(_Message):
    """Forget what has come of the current pass; it will not be finished."""

    type: Literal["drop"] = "drop"


class Dropped(_Message):
    """The receiver has forgotten the current pass."""

    type: Literal["dropped"] = "dropped"


class Stop(_Message):
    """The run is over; say what is left to say and end."""

    type: Literal["stop"] = "stop"
    completed: bool
    cause: str = ""
    """Why, if it is not completed."""


class Spins(_Message):
    """Best and last spins of the run, as sign bitmaps in the bytes that follow: best, then B replicas."""

    type: Literal["spins"] = "spins"
    best_pass: Natural
    best_replica: Natural
    best_two_energy: int


class Farewell(_Message):
    """Last words of a process that ends as it should."""

    type: Literal["farewell"] = "farewell"
    peak_memory: Natural


class Failed(_Message):
    """Why this process cannot go on, in one sentence, and the exit status it stands for."""

    type: Literal["failed"] = "failed"
    message: str
    exit_status: int
    is_consequence: bool = False
    """True if another process's end is the likely cause."""


Message = Annotated[
    Hello
    | Welcome
    | Opened
    | Resolved
    | Restored
    | Listening
    | DeviceRing
    | Join
    | Joined
    | Compiling
    | Busy
    | Ready
    | Begin
    | Progress
    | PassSent
    | PassReceived
    | Finish
    | Updated
    | Save
    | Saved
    | Drop
    | Dropped
    | Stop
    | Spins
    | Farewell
    | Failed,
    Field(discriminator="type"),
]

parse_message = TypeAdapter[Any](Message).validate_json
