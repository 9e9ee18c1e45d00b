"""Types of the compiled hot path, which has the same API as ``pure.py`` and ``producer_core.py``."""

from client_stub.engine.producer_core import ProducerCore as ProducerCore
from client_stub.native.pure import Delivery as Delivery
from client_stub.native.pure import Fate as Fate
from client_stub.native.pure import MessageCore as MessageCore
from client_stub.native.pure import OpenStream as OpenStream
from client_stub.native.pure import RecordPacker as RecordPacker
from client_stub.native.pure import SubmissionCore as SubmissionCore
from client_stub.native.pure import TwinCore as TwinCore
from client_stub.native.pure import clear_wakes as clear_wakes
from client_stub.native.pure import encode as encode
from client_stub.native.pure import mask_of_indexes as mask_of_indexes
from client_stub.native.pure import plain_pairs as plain_pairs
from client_stub.native.pure import receive as receive
from client_stub.native.pure import run_callbacks as run_callbacks
from client_stub.native.pure import unpack_outcomes as unpack_outcomes
from client_stub.native.pure import whole_message as whole_message
from client_stub.native.pure import write_wake as write_wake
