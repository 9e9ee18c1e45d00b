"""Types of the compiled hot path, which has the same API as ``pure.py`` and ``producer_core.py``."""

from client_stub.producer_core import ProducerCore as ProducerCore
from client_stub.pure import Delivery as Delivery
from client_stub.pure import Fate as Fate
from client_stub.pure import MessageCore as MessageCore
from client_stub.pure import OpenStream as OpenStream
from client_stub.pure import RecordPacker as RecordPacker
from client_stub.pure import SubmissionCore as SubmissionCore
from client_stub.pure import TwinCore as TwinCore
from client_stub.pure import clear_wakes as clear_wakes
from client_stub.pure import encode as encode
from client_stub.pure import mask_of_indexes as mask_of_indexes
from client_stub.pure import plain_pairs as plain_pairs
from client_stub.pure import receive as receive
from client_stub.pure import run_callbacks as run_callbacks
from client_stub.pure import unpack_outcomes as unpack_outcomes
from client_stub.pure import whole_message as whole_message
from client_stub.pure import write_wake as write_wake
