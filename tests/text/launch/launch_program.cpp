// Launches any command, for the tests: launch_program nproc=2 max_restarts=1 … -- COMMAND…, or
// -- COMMAND… -- RESTARTED…
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "mezzo/text/launch/launcher.h"

int main(int argc, char** argv) {
  using mezzo::text::LaunchOptions;
  using Arguments = std::vector<std::string>;
  const Arguments arguments(argv + 1, argv + argc);
  const auto separator = std::find(arguments.begin(), arguments.end(), "--");
  const auto begin = std::min(separator + 1, arguments.end());
  const auto second = std::find(begin, arguments.end(), "--");
  LaunchOptions options(Arguments(begin, second));
  options.restart_command(Arguments(std::min(second + 1, arguments.end()), arguments.end()));
  const std::map<std::string, std::function<void(const std::string&)>> set = {
      {"nproc", [&](const std::string& value) { options.nproc(std::stoll(value)); }},
      {"nnodes", [&](const std::string& value) { options.nnodes(std::stoll(value)); }},
      {"min_nnodes", [&](const std::string& value) { options.min_nnodes(std::stoll(value)); }},
      {"node_timeout_seconds", [&](const std::string& value) { options.node_timeout_seconds(std::stod(value)); }},
      {"join_seconds", [&](const std::string& value) { options.join_seconds(std::stod(value)); }},
      {"node_rank", [&](const std::string& value) { options.node_rank(std::stoll(value)); }},
      {"master_addr", [&](const std::string& value) { options.master_addr(value); }},
      {"master_port", [&](const std::string& value) { options.master_port(std::stoll(value)); }},
      {"max_restarts", [&](const std::string& value) { options.max_restarts(std::stoll(value)); }},
      {"grace_seconds", [&](const std::string& value) { options.grace_seconds(std::stod(value)); }},
      {"failure_grace_seconds", [&](const std::string& value) { options.failure_grace_seconds(std::stod(value)); }},
  };
  try {
    for (auto argument = arguments.begin(); argument != separator; ++argument) {
      const size_t equals = argument->find('=');
      set.at(argument->substr(0, equals))(argument->substr(equals + 1));
    }
    return mezzo::text::launch(options);
  } catch (const c10::ValueError& error) {
    std::fprintf(stderr, "ValueError: %s\n", error.what_without_backtrace());
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "Error: %s\n", error.what_without_backtrace());
  }
  return 100;
}
