#include <mezzo/distributed/group/rank_environment.h>

#include <string>

int main() {
  const auto of_torchrun = [](const char* name) -> std::optional<std::string> {
    const std::string variable = name;
    if (variable == "RANK" || variable == "LOCAL_RANK") return "1";
    if (variable == "WORLD_SIZE" || variable == "LOCAL_WORLD_SIZE") return "2";
    if (variable == "MASTER_ADDR") return "127.0.0.1";
    if (variable == "MASTER_PORT") return "29500";
    return std::nullopt;
  };
  return mezzo::distributed::RankEnvironment::detect(of_torchrun).value().rank == 1 ? 0 : 1;
}
