"""A TLS listener in front of a plain-text server: the servers of .tools have no TLS."""

import asyncio
import contextlib
import ssl
import threading


class TlsProxy:
    """Listens on `port` and forwards what it decrypts to `target`, both of 127.0.0.1."""

    def __init__(self, port, target, cert, key, ca, wants_client_certificate):
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
        self.context.load_cert_chain(cert, key)
        self.context.verify_mode = ssl.CERT_REQUIRED if wants_client_certificate else ssl.CERT_NONE
        self.target = target
        self.loop = asyncio.new_event_loop()
        # Fails here and not in the thread if the port is in use.
        self.loop.run_until_complete(asyncio.start_server(self.serve, "127.0.0.1", port, ssl=self.context))
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    async def serve(self, client_reader, client_writer):
        # asyncio prints the traceback of a connection that ends by being cancelled.
        with contextlib.suppress(asyncio.CancelledError):
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target)
            await asyncio.gather(forward(client_reader, server_writer), forward(server_reader, client_writer))

    def stop(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.run_until_complete(cancel_others())
        self.loop.close()


async def cancel_others():
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def forward(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
