"""The commented example that ``pipeline new`` writes."""

from __future__ import annotations

from typing import Final

EXAMPLE: Final = '''\
# A pipeline of kafka-sidecar: Spark reads, SQL selects, the daemon of each host writes to Kafka.
#   kafka-sidecar pipeline check FILE.toml    finds all faults, sends nothing
#   kafka-sidecar pipeline run FILE.toml      sends, and reports what is in Kafka

[pipeline]
name = "late-flights"            # names the Spark application
trigger = "once"                 # a batch; "available-now" or "10s" make it a stream
# checkpoint = "checkpoints/late"  # of a stream: where it goes on

[source]
format = "csv"                   # any format of Spark: parquet, json, orc, kafka, ...
path = "flights/*.csv"           # ${NAME} is taken from the environment
schema = "carrier STRING, arr_delay INT, time_hour TIMESTAMP"   # left out: inferred
options = { header = true }

[[step]]                         # each step is a view of its name; the first one reads "source"
name = "late"
sql = """
SELECT * FROM source
WHERE arr_delay > :minutes
"""
params = { minutes = 15 }        # --set minutes=30 overrides it; bound as a literal

[[output]]                       # one or several
from = "late"
topic = "late-flights"           # or topic_expr = "concat('late-', carrier)"
key = "carrier"                  # these are SQL expressions
value = "to_json(struct(*))"
# value_format = "avro"          # or json, protobuf: then value = "struct(*)", with the schema's file:
# value_schema = "flight.avsc"   # [registry] with its url makes that Confluent's format
timestamp = "time_hour"          # the record's time
headers = "map('source', 'flights')"
bad_rows = { path = "bad/" }     # or { topic = "late-flights-bad" }; left out: a bad row ends the run

[sidecar]
# run_dir = "/run/kafka-sidecar" # of the daemon on each host
# autostart = true               # or let each host start one by itself, with these settings:
# [kafka]
# "bootstrap.servers" = "localhost:9092"
'''
