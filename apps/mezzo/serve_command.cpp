#include <ATen/Parallel.h>
#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "mezzo/amp/cpu_half_compute.h"
#include "mezzo/distributed/group/rank_environment.h"
#include "mezzo/text/serve/server.h"
#include "model_session.h"
#include "stop_signal.h"

namespace mezzo::app {
namespace {

struct ServeFlags {
  std::vector<std::string> models;
  ModelFlags model;  // flags that all models share
  std::filesystem::path token_file;
  text::ServerOptions options;
  int64_t port = 8080, timeout = 30;
};

void say(const std::string& line) { std::fputs((line + "\n").c_str(), stderr); }

/// DIR, or NAME=DIR; without a name it is the folder's.
text::ServedModel parse_model(const std::string& given) {
  std::error_code none;
  const auto equals = given.find('=');
  if (equals == std::string::npos || std::filesystem::is_directory(given, none)) {
    const auto folder = std::filesystem::absolute(given).lexically_normal();
    const auto name = (folder.has_filename() ? folder : folder.parent_path()).filename().string();
    return {std::filesystem::is_directory(given, none) ? name : name.substr(0, name.find('@')), given};
  }
  return {given.substr(0, equals), given.substr(equals + 1)};
}

std::vector<text::ServedModel> parse_models(const std::vector<std::string>& given) {
  std::vector<text::ServedModel> models;
  for (const std::string& one : given) {
    auto model = parse_model(one);
    if (model.folder.empty()) {
      throw UsageError(fmt::format("--model {}: names no folder; pass NAME=DIR", one));
    }
    if (model.name.empty()) {
      throw UsageError(fmt::format("--model {}: has no name for requests; pass NAME=DIR", one));
    }
    if (!std::ranges::all_of(model.name, [](unsigned char c) { return c >= 0x20 && c != 0x7F; })) {
      throw UsageError("--model: a name has a control character, as a line break; pass NAME=DIR with another");
    }
    const auto has_its_name = [&](const text::ServedModel& other) { return other.name == model.name; };
    if (const auto other = std::ranges::find_if(models, has_its_name); other != models.end()) {
      throw UsageError(fmt::format("--model {} and {} are both called {}; name them: --model NAME=DIR",
                                   other->folder.string(), model.folder.string(), model.name));
    }
    models.push_back(std::move(model));
  }
  return models;
}

std::string read_token(const std::filesystem::path& path) {
  constexpr std::streamsize kMostBytes = 4096;
  std::string token(kMostBytes, '\0');
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK_VALUE(!std::filesystem::is_directory(path) && file, path.string(),
                    ": cannot be read; --token-file names a file with the token");
  file.read(token.data(), kMostBytes);
  token.resize(static_cast<size_t>(file.gcount()));
  token.erase(token.find_last_not_of(" \t\r\n") + 1);
  const bool is_plain = std::ranges::all_of(token, [](unsigned char c) { return c > 0x20 && c < 0x7F; });
  TORCH_CHECK_VALUE(!token.empty() && is_plain && token.size() < kMostBytes, path.string(),
                    ": expected one line of letters, digits and signs without spaces, the token");
  return token;
}

/// oneDNN keeps the compiled code for each shape, up to 1,024 shapes. The batches of a server have any number of texts,
/// so it would seem to lose memory for hours. Read when the first is compiled.
void keep_few_compiled_products() {
  setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64", /*overwrite=*/0);
  setenv("LRU_CACHE_CAPACITY", "64", /*overwrite=*/0);  // LibTorch's own, in front of it
}

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

/// Whether a Host header may have it as its name: words with single dots between them, or an IP address.
bool is_host_name(std::string host) {
  const bool is_in_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  in6_addr address{};
  const std::string bare = is_in_brackets ? host.substr(1, host.size() - 2) : host;
  if (::inet_pton(AF_INET6, bare.c_str(), &address) == 1) return true;
  if (host.ends_with('.')) host.pop_back();
  return !host.empty() && host.front() != '.' && host.front() != '-' && host.find("..") == std::string::npos &&
         !host.ends_with('.') && std::ranges::all_of(host, [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
         });
}

int run_serve(ServeFlags flags) {
  if (distributed::RankEnvironment::detect()) {
    throw UsageError("it runs in one process; start it without mezzo launch");
  }
  keep_few_compiled_products();
  auto models = parse_models(flags.models);
  auto& options = flags.options;
  if (!flags.token_file.empty()) options.token = read_token(flags.token_file);
  options.port = static_cast<uint16_t>(flags.port);
  options.timeout = std::chrono::seconds(flags.timeout);
  options.classifier = flags.model.options();
  options.log = [](const std::string& line) { say("mezzo serve: " + line); };
  catch_stop_signals();
  std::signal(SIGPIPE, SIG_IGN);  // the reader of the log may go away
  const CpuHalfCompute fast_half_compute;
  for (auto& model : models) model.folder = find_model(model.folder);
  text::Server server(models, options);
  std::vector<std::string> names;
  for (const auto& model : models) names.push_back(model.name);
  const bool is_ipv6 = options.host.find(':') != std::string::npos;
  stop_signal();  // from here on signals are handled: a reader of the next line may send one
  say(fmt::format("{} on {}, {} {}: http://{}:{}", fmt::join(names, ", "), options.classifier.device.str(),
                  at::get_num_threads(), at::get_num_threads() == 1 ? "thread" : "threads",
                  is_ipv6 ? "[" + options.host + "]" : options.host, server.port()));
  if (options.token.empty() && !is_loopback(options.host)) {
    say("warning: everyone who reaches this address may use the models; --token-file requires a token");
  }
  constexpr unsigned kFew = 100;
  if (server.most_connections() < kFew) {
    say(fmt::format("warning: {} connections at most at a time, because of the limit of open files; raise `ulimit -n`",
                    server.most_connections()));
  }
  while (stop_signal() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  say("stopping after the accepted requests; the same signal again stops the server immediately");
  server.stop();
  return 0;
}

}  // namespace

Run add_serve(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  auto& options = flags->options;
  app.add_option("--model", flags->models,
                 "folders of models, or their names on the Hugging Face Hub; NAME=MODEL gives a name for requests")
      ->required()
      ->type_name("MODEL")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  flags->model.add_to(app, /*chooses_precision=*/true, /*names_model=*/false);
  app.add_option("--host", options.host, "address to listen on; 0.0.0.0: all addresses")->capture_default_str();
  app.add_option("--port", flags->port, "port to listen on; 0: a free port")->capture_default_str();
  app.add_option("--token-file", flags->token_file, "file with a token that each request must have")->type_name("FILE");
  const auto expert = [](CLI::Option* option) { notes_of(option->capture_default_str()).is_basic = false; };
  auto* allowed = app.add_option("--allowed-host", options.allowed_hosts,
                                 "host name that requests may use beside this machine's; may be repeated; '*': any");
  expert(allowed->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->type_name("NAME"));
  expert(app.add_option("--max-body-bytes", options.max_body_bytes, "largest request, in bytes"));
  expert(app.add_option("--max-texts", options.max_texts, "maximum number of texts in a request"));
  expert(
      app.add_option("--max-queue", options.max_queue, "maximum number of waiting texts; later requests are refused"));
  expert(app.add_option("--timeout", flags->timeout, "time limit of a request, in seconds"));
  app.footer(
      "Examples:\n"
      "  mezzo serve --model out\n"
      "  mezzo serve --model topics=out/a traits=out/b --port 9000 --token-file token\n"
      "  curl -s localhost:8080/predict -d '{\"text\": \"it rains\"}' \\\n      -H 'Content-Type: application/json'");
  return [flags] {
    flags->model.check();
    as_usage([&] {
      const auto check = [](const char* flag, int64_t value, int64_t least, int64_t most) {
        TORCH_CHECK_VALUE(value >= least && value <= most, flag, " is ", value, ", expected ", least, " to ", most);
      };
      check("--port", flags->port, 0, 65535);
      check("--max-body-bytes", flags->options.max_body_bytes, 1024, int64_t{1} << 30);
      check("--max-texts", flags->options.max_texts, 1, 1'000'000);
      check("--max-queue", flags->options.max_queue, 1, 1'000'000);
      check("--timeout", flags->timeout, 1, 86'400);
      for (const std::string& host : flags->options.allowed_hosts) {
        TORCH_CHECK_VALUE(
            is_host_name(host) || host == "*", "--allowed-host '", host,
            "' is not a host name; pass a whole name without a port, such as mezzo.example.org, or '*' for "
            "any");
      }
    });
    return run_serve(*flags);
  };
}

}  // namespace mezzo::app
