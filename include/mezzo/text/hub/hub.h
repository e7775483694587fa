#pragma once

#include "mezzo/cpp20.h"

#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>

/// Models by their names on the Hugging Face Hub, in the cache that huggingface_hub (Python) keeps too.
namespace mezzo::text {

/// The files of a model to fetch.
enum class ModelFiles {
  kAll,        ///< config, tokenizer and weights
  kTokenizer,  ///< without the weights
};

struct HubOptions {
  ModelFiles files = ModelFiles::kAll;
  bool quiet = false;                      ///< no progress bar on stderr
  std::function<bool()> stop_requested{};  ///< asked a few times a second; true stops a download
};

/// A download ended because stop_requested() said so. The part on the disk is kept: the next download resumes it.
struct DownloadStopped : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The folder of a model: `name` itself if it is a folder, else the snapshot of the model of that id in the cache.
/// What the cache lacks is downloaded first. Ids are "NAME", "ORG/NAME" and either with "@REVISION": a branch, a tag,
/// "refs/pr/N" or a commit.
///
/// A branch or tag costs one request, for its newest commit. If the hub cannot be reached, the cached commit is used,
/// with a warning. A cached commit that is given by its hash costs none.
///
/// Only files that mezzo reads are fetched. Each is checked against the size and hash that the hub states. Processes
/// wait for each other's downloads through huggingface_hub's locks. Thread-safe.
///
/// Environment, as in huggingface_hub: HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH;
/// proxies as in curl: HTTPS_PROXY, NO_PROXY. The token is sent to HF_ENDPOINT alone.
/// @throws c10::ValueError  if there is neither such a folder nor such a model, or it has no weights that mezzo reads.
/// @throws c10::Error  if the download fails; the message says why and what to do.
/// @throws DownloadStopped
/// @see huggingface_hub.snapshot_download (Python)
std::filesystem::path model_folder(const std::string& name, const HubOptions& options = {});

/// The pinned id of a model whose folder is a snapshot in a cache: "ORG/NAME@COMMIT". Of other paths the path itself.
std::string hub_name(const std::filesystem::path& folder);

}  // namespace mezzo::text
