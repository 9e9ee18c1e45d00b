"""ZMTP 3.1 as bytes in, messages out: frames, mechanisms, a connection's parser, keys. Sans-IO.

It imports nothing of ours and knows nothing of Kafka, so it could be published alone. Section of ZeroMQ's RFC (37/ZMTP,
26/CurveZMQ with 25/ZMTP-CURVE), what implements it, and a test that shows it::

    37 Overall Behavior | connection.ZmtpConnection.next_message | test_our_client_speaks_with_libzmqs_router
    37 Version Negotiation | mechanism.check_greeting | test_bytes_that_break_the_rules_are_refused
    37 Authentication and Confidentiality | mechanism.Mechanism | test_libzmqs_dealer_speaks_with_our_server
    37 Error Handling | mechanism.PeerRefused | test_a_libzmq_client_without_a_known_key_is_refused
    37 Framing | frames.whole_message | test_whatever_the_cuts_the_messages_are_the_same
    37 Commands | frames.command | test_a_command_has_one_kibibyte_and_before_ready_that_is_all
    37 Messages | frames.encode | test_libzmq_writes_the_same_bytes_as_we_do
    37 The NULL Security Mechanism | mechanism.Null.handshake | test_a_recorded_conversation_is_the_same_byte_by_byte
    37 Connection Metadata | mechanism.read_metadata | test_bytes_that_break_the_rules_are_refused
    37 The Socket-Type Property | connection.ZmtpConnection | test_a_socket_of_a_wrong_type_is_refused_by_its_type
    37 Connection Heartbeating | mechanism.Mechanism.command | test_a_ping_is_answered
    26 The HELLO Command | curve.CurveServer._hello | test_a_client_of_another_server_is_refused_at_its_first_word
    26 The WELCOME Command | curve.CurveClient._welcome | test_a_changed_byte_of_the_daemons_answer_is_noticed
    26 The INITIATE Command | curve.CurveServer._initiate | test_a_recorded_handshake_opens_no_second_connection
    26 The READY Command | curve.CurveClient.handshake | test_a_recorded_conversation_is_the_same_byte_by_byte
    26 The MESSAGE Command | curve.Curve.open | test_a_repeated_or_reordered_frame_ends_the_connection
    26 The ERROR Command | curve.CurveServer.handshake | test_a_stranger_hears_error_and_nothing_else
"""
