"""What an operator sees: the state of brokers, pool, clients and certificates, as notes and numbers.

It reads what others know, and decides nothing but words.
"""
