"""A TCP port for a Unix socket, since the fuzzer speaks TCP only: proxy.py SOCKET prints the port."""

import socket
import socketserver
import sys
import threading


class Relay(socketserver.BaseRequestHandler):
    def handle(self):
        with socket.socket(socket.AF_UNIX) as daemon:
            daemon.connect(sys.argv[1])
            back = threading.Thread(target=pump, args=(daemon, self.request), daemon=True)
            back.start()
            pump(self.request, daemon)
            back.join()


def pump(source, sink):
    try:
        while chunk := source.recv(65536):
            sink.sendall(chunk)
    except OSError:
        pass
    try:
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True


with Server(("127.0.0.1", 0), Relay) as server:
    print(server.server_address[1], flush=True)
    server.serve_forever()
