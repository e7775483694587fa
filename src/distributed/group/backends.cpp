#include "distributed/group/backends.h"

#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "graph/step_recording.h"
#include "kernels/cuda_library.h"

namespace mezzo::distributed {
namespace {

/// The address under which this host talks to `host`: nothing is sent. Empty if there is none.
std::string address_towards(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    return "";
  }
  char text[NI_MAXHOST] = "";
  const int fd = ::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage local{};
  socklen_t length = sizeof(local);
  if (fd >= 0 && ::connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &length) == 0) {
    getnameinfo(reinterpret_cast<sockaddr*>(&local), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  }
  if (fd >= 0) {
    ::close(fd);
  }
  freeaddrinfo(found);
  return text;
}

/// The interface that GLOO_SOCKET_IFNAME names, as in PyTorch; else loopback where all ranks are on
/// one host, else the one that leads to the master. A host's own name, which is PyTorch's choice,
/// is often no address others can use.
std::shared_ptr<gloo::transport::Device> gloo_device(const RankEnvironment& environment) {
  using c10d::ProcessGroupGloo;
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME")) {
    return ProcessGroupGloo::createDeviceForInterface(interface);
  }
  if (environment.local_world_size == environment.world_size) {
    return ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  }
  const std::string address = address_towards(environment.master_addr, environment.master_port);
  return address.empty() ? ProcessGroupGloo::createDefaultDevice() : ProcessGroupGloo::createDeviceForHostname(address);
}

}  // namespace

bool has_nccl() {
  const CudaLibrary* const cuda = cuda_library();
  return cuda != nullptr && cuda->make_nccl_backend != nullptr;
}

void check_backend(const c10::Device& device) {
  TORCH_CHECK_VALUE(device.is_cpu() || (device.is_cuda() && has_nccl()), "collectives on ", device,
                    " need a LibTorch with NCCL, which mezzo was not built with; use the CPU, or build against a CUDA "
                    "build of PyTorch, with nvcc");
}

void add_backends(c10d::ProcessGroup& group,
                  const c10::intrusive_ptr<c10d::Store>& store,
                  const RankEnvironment& environment,
                  const c10::Device& device,
                  std::chrono::milliseconds timeout) {
  using c10d::ProcessGroup;
  const auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(gloo_device(environment));
  const auto gloo =
      c10::make_intrusive<c10d::ProcessGroupGloo>(store, environment.rank, environment.world_size, options);
  group.setBackend(c10::kCPU, ProcessGroup::BackendType::GLOO, gloo);
  group.setDefaultBackend(ProcessGroup::BackendType::GLOO);
  if (device.is_cuda()) {
    group.setBackend(
        c10::kCUDA, ProcessGroup::BackendType::NCCL,
        cuda_library()->make_nccl_backend(store, environment.rank, environment.world_size, device, timeout));
    group.setDefaultBackend(ProcessGroup::BackendType::NCCL);
  }
}

void run_collective(ProcessGroup& group, c10::DeviceType type, const std::function<void()>& collective) {
  auto* const recording = StepRecording::current();
  if (recording == nullptr || can_be_captured(*group.c10d(), type)) {
    return group.guard(collective);
  }
  TORCH_CHECK(type != c10::kCPU, "a collective on the CPU, whose result the host would read; call it between steps");
  recording->call_between_graphs([&group, collective] { group.guard(collective); });
}

bool can_be_captured(c10d::ProcessGroup& group, c10::DeviceType type) {
  const std::string name = group.getBackend(type)->getBackendName();
  return type != c10::kCPU && name != "gloo" && name != "mpi" && name != "ucc";  // which work on the host
}

}  // namespace mezzo::distributed
