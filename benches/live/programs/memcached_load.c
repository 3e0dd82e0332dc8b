/* memcached_load PORT CONNECTIONS SECONDS: gets a 100-byte value over CONNECTIONS connections to 127.0.0.1, each
 * with one request outstanding, from one thread (epoll). Prints the requests per second. */
#include "common.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define VALUE_BYTES 100
static const char get[] = "get key\r\n";

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static int connect_to(int port)
{
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port),
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		die("connect");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

static void send_all(int fd, const char *text, size_t length)
{
	if (write(fd, text, length) != (ssize_t)length)
		die("write");
}

static void store(int fd)
{
	char request[64 + VALUE_BYTES], reply[64];
	int head = sprintf(request, "set key 0 0 %d\r\n", VALUE_BYTES);
	memset(request + head, 'v', VALUE_BYTES);
	memcpy(request + head + VALUE_BYTES, "\r\n", 2);
	send_all(fd, request, head + VALUE_BYTES + 2);
	if (read(fd, reply, sizeof(reply)) < 6 || memcmp(reply, "STORED", 6) != 0)
		die("set");
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return usage("memcached_load PORT CONNECTIONS SECONDS");
	int connections = atoi(argv[2]), poll = epoll_create1(0);
	long requests = 0;
	for (int i = 0; i < connections; i++) {
		struct epoll_event event = { .events = EPOLLIN, .data.fd = connect_to(atoi(argv[1])) };
		store(event.data.fd);
		epoll_ctl(poll, EPOLL_CTL_ADD, event.data.fd, &event);
		send_all(event.data.fd, get, sizeof(get) - 1);
	}
	uint64_t start = now_ns(), end = start + (uint64_t)(atof(argv[3]) * 1e9);
	while (now_ns() < end) {
		struct epoll_event events[64];
		int ready = epoll_wait(poll, events, 64, 1000);
		for (int i = 0; i < ready; i++) {
			char reply[512];
			if (read(events[i].data.fd, reply, sizeof(reply)) <= VALUE_BYTES)
				die("get");
			send_all(events[i].data.fd, get, sizeof(get) - 1);
			requests++;
		}
	}
	printf("requests/s: %.1f\n", requests / ((now_ns() - start) / 1e9));
	return 0;
}
