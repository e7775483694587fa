#include "distributed/group/hosted_store.h"

#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "system/unique_fd.h"

namespace mezzo::distributed {
namespace {

/// A listening socket on an address of `family`; nothing if the kernel has no such family. Ranks
/// of many nodes may come at once, so the backlog is as long as the kernel allows.
UniqueFd listen_on(const sockaddr* address, socklen_t size, int64_t port) {
  UniqueFd socket(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) {
    return socket;
  }
  const int yes = 1, no = 0;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (address->sa_family == AF_INET6) {
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  }
  if (::bind(socket.get(), address, size) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) {
    TORCH_CHECK(errno != EADDRINUSE, "port ", port, " is in use on this machine; choose another");
    TORCH_CHECK(errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT, "cannot listen on port ", port, ": ",
                std::strerror(errno));
    socket.reset();
  }
  return socket;
}

UniqueFd listen_on_v4(in_addr_t address, int64_t port) {
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(static_cast<uint16_t>(port));
  v4.sin_addr.s_addr = htonl(address);
  UniqueFd socket = listen_on(reinterpret_cast<const sockaddr*>(&v4), sizeof v4, port);
  TORCH_CHECK(socket.get() >= 0, "cannot listen on port ", port, ": ", std::strerror(errno));
  return socket;
}

UniqueFd listen_everywhere(int64_t port) {
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(static_cast<uint16_t>(port));
  v6.sin6_addr = in6addr_any;
  UniqueFd socket = listen_on(reinterpret_cast<const sockaddr*>(&v6), sizeof v6, port);
  return socket.get() >= 0 ? std::move(socket) : listen_on_v4(INADDR_ANY, port);
}

int64_t port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  const bool v6 = address.ss_family == AF_INET6;
  return ntohs(v6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                  : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

HostedStore serve(UniqueFd socket) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port_of(socket.get()));
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = socket.release();
  options.timeout = std::chrono::seconds(10);  // to reach itself even if the network has just failed
  try {
    return {c10::make_intrusive<c10d::TCPStore>(kLoopback, options), options.port};
  } catch (const std::exception& error) {
    const std::string why = error.what();
    TORCH_CHECK(false, "cannot reach itself at ", kLoopback, ":", options.port, ": ", why.substr(0, why.find('\n')),
                "; if the loopback network of this machine is down, run `ip link set lo up`");
  }
}

}  // namespace

HostedStore host_local_store() { return serve(listen_on_v4(INADDR_LOOPBACK, 0)); }

HostedStore host_store(int64_t port) { return serve(listen_everywhere(port)); }

}  // namespace mezzo::distributed
