#pragma once

#include <c10/util/Exception.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "distributed/group/hosted_store.h"
#include "mezzo/distributed/group/process_group.h"

namespace mezzo::distributed {

/// Ranks that are threads of this process. They meet at a store that the test
/// keeps, as a launcher would.
struct RankThreads {
  int world_size = 2;
  int started = world_size;  ///< the others never come
  std::chrono::milliseconds timeout = std::chrono::minutes(1);
  bool one_host = true;
  bool check_collectives = false;
  std::function<void(RankEnvironment&)> adjust = [](RankEnvironment&) {};

  /// Runs `work` on each, with a separate group. Returns their errors, by rank; "" for none.
  std::vector<std::string> run(const std::function<void(ProcessGroup&)>& work) const {
    const HostedStore store = host_local_store();
    std::vector<std::string> errors(started);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < started; ++rank) {
      threads.emplace_back([&, rank] {
        RankEnvironment environment;
        environment.rank = rank;
        environment.world_size = world_size;
        environment.local_rank = one_host ? rank : 0;
        environment.local_world_size = one_host ? world_size : 1;
        environment.master_port = static_cast<uint16_t>(store.port);
        environment.launcher_hosts_store = true;
        adjust(environment);
        try {
          ProcessGroup group(environment, ProcessGroupOptions().timeout(timeout).check_collectives(check_collectives));
          work(group);
        } catch (const c10::Error& error) {
          errors[rank] = error.what_without_backtrace();
        } catch (const std::exception& error) {
          errors[rank] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    return errors;
  }
};

}  // namespace mezzo::distributed
