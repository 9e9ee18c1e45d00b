"""Drop-in twins of other clients' producers: ``compat.confluent.Producer`` and ``compat.kafka_python.KafkaProducer``.

They are thin layers over ``client_stub.Producer`` for programs that exist. New programs use that one.
"""
