"""Drop-in replacements of other clients' producers: ``compat.confluent.Producer`` and
``compat.kafka_python.KafkaProducer``.

They are thin layers over ``client_stub.Producer`` for existing programs. New programs should use that one.
"""
