#pragma once

#include "mezzo/cpp20.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mezzo/text/inference/classifier.h"

namespace mezzo::text {

/// A folder with a trained classifier, and what requests call it.
struct ServedModel {
  std::string name;
  std::filesystem::path folder;
};

struct ServerOptions {
  std::string host = "127.0.0.1";  ///< an address or a name of this machine
  uint16_t port = 8080;            ///< 0: one that is free
  std::string token = {};          ///< that requests must bear; empty: none is asked for
  /// Further names by which clients may call it (Host); "*": any. IP addresses, localhost, this machine's name and
  /// `host` are allowed.
  std::vector<std::string> allowed_hosts = {};
  int64_t max_body_bytes = int64_t{4} << 20;         ///< of a request
  int64_t max_texts = 1024;                          ///< of a request
  int64_t max_queue = 4096;                          ///< texts that may wait
  std::chrono::seconds timeout{30};                  ///< for a request
  ClassifierOptions classifier = {};                 ///< of all models; their weights are copied whatever it says
  std::function<void(const std::string&)> log = {};  ///< takes one line; called from any thread
};

/// Answers HTTP requests with what models say of texts. See docs/serving.md for the requests and answers.
///
/// Requests that wait are packed into batches together, and run by a thread of their own.
class Server {
 public:
  /// Loads the models, runs each once, and listens.
  /// @param models  at least one, of different names.
  /// @throws c10::ValueError  for a folder that holds no trained classifier, and for a name that is not UTF-8.
  /// @throws c10::Error  where nothing can listen on the port.
  Server(const std::vector<ServedModel>& models, const ServerOptions& options);
  /// Stops.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// The one it listens on.
  uint16_t port() const;
  /// At a time: as many as files may be open.
  unsigned most_connections() const;

  /// Takes no more requests, answers those that are there, and returns; thread-safe, and safe to call twice.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mezzo::text
