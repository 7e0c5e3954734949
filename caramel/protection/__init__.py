"""Strangers stay outside: certificates of hosts, and relays in front of servers that ask for them.

TensorFlow's servers listen on every interface, and know neither authentication nor encryption. A
protected server is in a network namespace of its own, which has nothing but loopback. Its *relay*,
a process outside, is the only way in and out: it takes connections of relays whose certificate is
of the same authority (CA), and carries the server's own to other relays. A program that drives the
workers has such a relay, too. Nothing here knows of TensorFlow.

================ ===================================================================================
`authority`      an authority (CA) and the certificates that it signs; without files
`certificates`   the certificates of a cluster's hosts, as files
`client_process` the relay of a program that drives workers, as a process
`credentials`    the certificate of this host, and TLS with it
`handshakes`     who connects proves who it is, before anything else, and in time
`local_users`    does a process of the same user make a connection on this machine?
`namespace`      a network namespace of this process's own, with nothing but loopback
`pump`           carries bytes between two sockets, in both directions
`refusals`       what is said of those who were refused
`relay`          takes connections in from other relays, and carries local ones out to them
`way_in`         the only way into a server's namespace, and out of it: a Unix socket
================ ===================================================================================
"""
