#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace mezzo::distributed {

inline constexpr const char* kLoopback = "127.0.0.1";

/// A c10d::TCPStore that this process serves, until it is let go.
struct HostedStore {
  c10::intrusive_ptr<c10d::Store> store;
  int64_t port;
};

/// On a free port that only this machine can reach.
HostedStore host_local_store();

/// On `port` of every address of this machine.
/// @throws c10::Error  when the port is in use.
HostedStore host_store(int64_t port);

}  // namespace mezzo::distributed
