"""Signatures of the SavedModels that this user exported, which are loaded without --trust_saved_model.

Loading a SavedModel can run code, and no check of its files shows what they do. So `export` signs them, by an HMAC over
all names and contents with a key that only this user can read. (A list of trusted digests would need no key, but would
grow with each export; a digest in config.json could be written by whoever wrote the SavedModel.)
"""

import contextlib
import hashlib
import hmac
import os
import secrets

from identity_matters.errors import UserError, note
from identity_matters.fields import require
from identity_matters.runs.files import open_file

# Text files of a SavedModel: the signature, and the names of the classes as a JSON list.
CLASS_NAMES_FILE = os.path.join("assets.extra", "class_names.json")
SIGNATURE_FILE = os.path.join("assets.extra", "signature.txt")  # TensorFlow leaves this folder to whoever exports


def key_path() -> str:
    """Returns the path of this user's key, which no run directory holds: whoever sends a run must not send a key."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "identity_matters", "key")


def sign(folder: str) -> None:
    """Signs the SavedModel in a folder with this user's key, which the first signature makes."""
    try:
        signature = _signature(folder, _read_key(is_made=True))
    except (OSError, UserError) as error:  # a home that cannot be written to must not cost a run its results
        note(f"the SavedModel is not signed, so evaluating it will need --trust_saved_model: {error}")
        return
    os.makedirs(os.path.dirname(os.path.join(folder, SIGNATURE_FILE)), exist_ok=True)
    with open(os.path.join(folder, SIGNATURE_FILE), "w") as file:
        file.write(signature)


def is_signed(folder: str) -> bool:
    """Returns whether this user exported the SavedModel in a folder, and all its files are as they were then."""
    try:
        with open_file(os.path.join(folder, SIGNATURE_FILE)) as file:
            found = file.read(100)  # more than the 64 digits of a signature
        return hmac.compare_digest(found, _signature(folder, _read_key()).encode())
    except (OSError, UserError):
        return False


def _read_key(is_made: bool = False) -> bytes:
    path = key_path()
    if is_made and not os.path.lexists(path):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        temporary = f"{path}_{secrets.token_hex(8)}"
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
        with contextlib.suppress(FileExistsError):  # another process was first: its key is this user's too
            os.link(temporary, path)  # whole or not at all
        os.remove(temporary)
    with open_file(path) as file:
        status = os.fstat(file.fileno())
        key = file.read()
    is_private = status.st_uid == os.geteuid() and not status.st_mode & 0o077
    require(is_private and len(key) == 32, f"{path} is not a key of 32 bytes that only you can read; remove it")
    return key


def _signature(folder: str, key: bytes) -> str:
    """Returns the HMAC-SHA256 over the name and the content of each file but the signature, in hexadecimal digits."""
    code = hmac.new(key, digestmod=hashlib.sha256)
    paths = (os.path.join(within, name) for within, _, names in os.walk(folder, followlinks=True) for name in names)
    for name in sorted({os.path.relpath(path, folder) for path in paths} - {SIGNATURE_FILE}):
        with open_file(os.path.join(folder, name)) as file:
            # Two digests of fixed length, so that no other names and contents make the same bytes.
            code.update(hashlib.sha256(os.fsencode(name)).digest() + hashlib.sha256(file.read()).digest())
    return code.hexdigest()
