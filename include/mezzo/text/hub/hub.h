#pragma once

#include "mezzo/cpp20.h"

#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>

/// Models by their names on the Hugging Face Hub, in the cache of huggingface_hub (Python).
namespace mezzo::text {

/// The files of a model to fetch.
enum class ModelFiles {
  kAll,        ///< config, tokenizer and weights
  kTokenizer,  ///< without the weights
};

/// Options of model_folder().
struct HubOptions {
  ModelFiles files = ModelFiles::kAll;     ///< the files to fetch
  bool quiet = false;                      ///< no progress bar on stderr
  std::function<bool()> stop_requested{};  ///< called a few times a second; true stops a download
};

/// stop_requested() ended a download. The part on the disk is kept, and the next download resumes
/// it.
struct DownloadStopped : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The folder of a model: `name` itself if it is a folder, else the snapshot of that model in the
/// cache. If the cache lacks files, they are downloaded first. Ids are "NAME" or "ORG/NAME",
/// optionally with "@REVISION": a branch, a tag, "refs/pr/N" or a commit.
///
/// A branch or tag costs one request, for its newest commit. If the hub cannot be reached, the
/// cached commit is used, with a warning. A cached commit that is given by its hash costs no
/// request.
///
/// Only files that mezzo reads are fetched. Each is checked against the hub's size and hash.
/// Processes wait for each other's downloads through huggingface_hub's locks. Thread-safe.
///
/// Environment, as in huggingface_hub: HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_ENDPOINT,
/// HF_TOKEN, HF_TOKEN_PATH. Proxies as in curl: HTTPS_PROXY, NO_PROXY. The token is sent only to
/// HF_ENDPOINT.
/// @throws c10::ValueError  if neither such a folder nor such a model exists, or it has no weights
///     that mezzo reads
/// @throws c10::Error  if the download fails; the message has the cause and the remedy
/// @throws DownloadStopped  if stop_requested() returned true
/// @see huggingface_hub.snapshot_download (Python)
std::filesystem::path model_folder(const std::string& name, const HubOptions& options = {});

/// The pinned id of a model whose folder is a snapshot in a cache: "ORG/NAME@COMMIT". For other
/// paths the path itself.
std::string hub_name(const std::filesystem::path& folder);

}  // namespace mezzo::text
