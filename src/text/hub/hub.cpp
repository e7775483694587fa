#include "mezzo/text/hub/hub.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "mezzo/text/io/atomic_file.h"
#include "mezzo/text/io/progress_bar.h"
#include "mezzo/text/io/safetensors.h"
#include "system/unique_fd.h"
#include "text/hub/hub_client.h"
#include "text/io/durable_files.h"
#include "text/io/json.h"
#include "text/io/read_error.h"
#include "text/io/read_file.h"
#include "text/io/utf8.h"

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCommitDigits = "0123456789abcdef";
/// Files of a tokenizer that tokenizer.json takes the place of.
constexpr const char* kVocabularies[] = {"vocab.txt", "vocab.json",     "merges.txt", "sentencepiece.bpe.model",
                                         "spm.model", "tokenizer.model"};
constexpr const char* kSmallFiles[] = {"config.json",           "adapter_config.json",     "tokenizer.json",
                                       "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"};

/// The first of these environment variables that is not empty.
std::string variable(std::initializer_list<const char*> names, const std::string& otherwise = "") {
  for (const char* name : names) {
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
  }
  return otherwise;
}

fs::path folder_variable(std::initializer_list<const char*> names, const fs::path& otherwise) {
  const std::string path = variable(names, otherwise.string());
  return path.starts_with("~/") ? variable({"HOME"}) + path.substr(1) : path;
}

fs::path hf_home() {
  return folder_variable({"HF_HOME"}, folder_variable({"XDG_CACHE_HOME"}, "~/.cache") / "huggingface");
}

fs::path hub_cache() { return folder_variable({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}, hf_home() / "hub"); }

bool is_offline() {
  const std::string value = ascii_lower(variable({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}));
  return value == "1" || value == "on" || value == "yes" || value == "true";
}

std::string read_word(const fs::path& file) {
  std::error_code error;
  std::string text = fs::is_regular_file(file, error) ? read_file(file) : "";
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  text.erase(0, text.find_first_not_of(" \t\r\n"));
  return text;
}

struct HubToken {
  std::string text, source;  // empty for none; the variable or file that holds it
};

HubToken hub_token() {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (const std::string token = variable({name}); !token.empty()) return {token, name};
  }
  const fs::path file = folder_variable({"HF_TOKEN_PATH"}, hf_home() / "token");
  return {read_word(file), file.string()};
}

bool is_commit(std::string_view text) {
  return text.size() == 40 && text.find_first_not_of(kCommitDigits) == text.npos;
}

struct ModelId {
  std::string name, revision = "main";
  fs::path folder;  // in the cache
};

/// Letters, digits, '.', '_' and '-', which begin no part with a dot, and up to `slashes` slashes.
bool is_plain_name(std::string_view text, int64_t slashes) {
  return !text.empty() && text.back() != '/' && text.front() != '/' && text.front() != '.' &&
         text.find("//") == text.npos && text.find("/.") == text.npos && text.find("..") == text.npos &&
         std::ranges::count(text, '/') <= slashes && std::ranges::all_of(text, [](unsigned char c) {
           return c < 0x80 && (std::isalnum(c) != 0 ||
                               std::string_view("._-/").find(static_cast<char>(c)) != std::string_view::npos);
         });
}

std::optional<ModelId> parse_id(const std::string& text) {
  ModelId id;
  const size_t at = text.find('@');
  id.name = text.substr(0, at);
  if (at != text.npos) id.revision = text.substr(at + 1);
  if (!is_plain_name(id.name, 1) || !is_plain_name(id.revision, 9)) return std::nullopt;
  std::string folder = "models--" + id.name;
  if (const size_t slash = folder.find('/'); slash != folder.npos) folder.replace(slash, 1, "--");
  id.folder = hub_cache() / folder;
  return id;
}

/// Whether a snapshot has all that is needed. Weights are fetched last, so they are there only with all else.
bool is_complete(const fs::path& snapshot, ModelFiles files) {
  std::error_code none;
  const auto has = [&](const std::string& name) { return fs::exists(snapshot / name, none); };
  const bool has_tokenizer = has("tokenizer.json") || std::ranges::any_of(kVocabularies, has);
  if (!has("config.json") || !has_tokenizer) return false;
  if (files == ModelFiles::kTokenizer || has(kWeightsFile)) return true;
  return has(kWeightsIndexFile) && std::ranges::all_of(shards_of(snapshot / kWeightsIndexFile), has);
}

/// A lock on a file, as Python's filelock has it: processes wait for each other.
UniqueFd lock_file(const fs::path& path, const std::function<bool()>& stop_requested) {
  make_folders(path.parent_path());
  for (;;) {
    UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0664));
    TORCH_CHECK(file.get() >= 0, path.string(), ": cannot be made: ", std::generic_category().message(errno),
                ". Set HF_HOME to a folder that you may write to");
    while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) return file;  // a file system without locks: hashes find a mix
      if (stop_requested && stop_requested())
        throw DownloadStopped("stopped while another process downloads the model");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    if (is_name_of(path, file.get())) return file;  // the process that held it may have removed it
  }
}

/// One model of the hub, on its way into the cache.
class Download {
 public:
  Download(const ModelId& id, const HubOptions& options)
      : id_(id), options_(options), client_(endpoint_, token_.text, options.stop_requested) {}

  /// The newest commit of the revision, and the names of its files.
  std::string look_up() {
    const auto answer = client_.ask(fmt::format("/api/models/{}/revision/{}", id_.name, escaped(id_.revision)));
    check(answer);
    const auto json = parse_json(answer.body, endpoint_ + ": ");
    try {
      commit_ = json.at("sha").get<std::string>();
      for (const auto& file : json.at("siblings")) names_.insert(file.at("rfilename").get<std::string>());
    } catch (const nlohmann::json::exception&) {
      commit_.clear();
    }
    TORCH_CHECK(is_commit(commit_), endpoint_, ": did not answer as a Hugging Face hub does; check HF_ENDPOINT");
    return commit_;
  }

  void fetch() {
    std::set<std::string> small(std::begin(kSmallFiles), std::end(kSmallFiles));
    if (!names_.contains("tokenizer.json")) small.insert(std::begin(kVocabularies), std::end(kVocabularies));
    std::erase_if(small, [&](const std::string& name) { return !names_.contains(name); });
    const bool has_index = !names_.contains(kWeightsFile) && names_.contains(kWeightsIndexFile);
    const bool is_adapter = small.contains("adapter_config.json") && !small.contains("config.json");
    const bool needs_weights = options_.files == ModelFiles::kAll && !is_adapter;
    TORCH_CHECK_VALUE(!needs_weights || has_index || names_.contains(kWeightsFile), id_.name, ": ",
                      why_no_weights(names_, id_.name));
    if (needs_weights && has_index) small.insert(kWeightsIndexFile);
    fetch(small);
    if (needs_weights)
      fetch(has_index ? shards_of(snapshot() / kWeightsIndexFile) : std::vector<std::string>{kWeightsFile});
    if (!is_commit(id_.revision)) {
      const fs::path ref = id_.folder / "refs" / id_.revision;
      make_folders(ref.parent_path());
      if (read_word(ref) != commit_) write_file_atomically(ref, commit_);
    }
  }

  fs::path snapshot() const { return id_.folder / "snapshots" / commit_; }

 private:
  struct File {
    std::string name, etag;
    int64_t bytes = -1;  // -1: the hub does not say
  };

  static std::string escaped(std::string text) {
    for (size_t slash = 0; (slash = text.find('/', slash)) != text.npos;) text.replace(slash, 1, "%2F");
    return text;
  }

  std::string path_of(const std::string& name) const {
    return fmt::format("/{}/resolve/{}/{}", id_.name, commit_, name);
  }

  /// Explains a status to the user.
  void check(const HubClient::Answer& answer) const {
    const int64_t status = answer.status;
    if (status >= 200 && status < 400) return;
    const std::string code = answer.header("x-error-code"), page = endpoint_ + "/" + id_.name;
    const bool is_token_wrong =
        status == 401 && !token_.text.empty() &&
        (code != "RepoNotFound" || answer.header("x-error-message").starts_with("Invalid credentials"));
    TORCH_CHECK_VALUE(!is_token_wrong, id_.name, ": ", endpoint_, " refuses the token of ", token_.source,
                      ". Renew the token, or remove it if the model is public");
    TORCH_CHECK_VALUE(code != "RevisionNotFound", id_.name, ": has no revision '", id_.revision, "'. See ", page,
                      "/tree/main");
    TORCH_CHECK_VALUE(status != 403 && code != "GatedRepo", id_.name, ": access is restricted. Accept the terms at ",
                      page, ", and set HF_TOKEN to a token of your account");
    TORCH_CHECK_VALUE(status != 401 && status != 404, id_.name, ": there is no such folder, and ", endpoint_,
                      " has no such model. ",
                      token_.text.empty() ? "If it is private, set HF_TOKEN." : "If it is private, check HF_TOKEN.",
                      did_you_mean_file(id_.name));
    const std::string seconds = answer.header("retry-after");
    const bool is_number = !seconds.empty() && seconds.find_first_not_of("0123456789") == seconds.npos;  // else a date
    const std::string later = is_number ? fmt::format("in {} seconds", seconds) : "later";
    throw HubUnreachable(status == 429
                             ? fmt::format("{} limits requests (status 429). Try again {}{}", endpoint_, later,
                                           token_.text.empty() ? ", or set HF_TOKEN" : "")
                             : fmt::format("{} answered with status {}. Try again {}", endpoint_, status, later));
  }

  File describe(const std::string& name) {
    const auto answer = client_.ask(path_of(name), /*is_head=*/true);
    check(answer);
    const auto header = [&](const char* linked, const char* own) {
      return answer.header(answer.headers.contains(linked) ? linked : own);
    };
    File file{name, header("x-linked-etag", "etag")};
    if (file.etag.starts_with("W/")) file.etag.erase(0, 2);
    std::erase(file.etag, '"');
    TORCH_CHECK(is_plain_name(file.etag, 0), endpoint_, path_of(name), ": has no ETag; check HF_ENDPOINT and proxies");
    const std::string bytes = header("x-linked-size", answer.status == 200 ? "content-length" : "");
    if (!bytes.empty()) file.bytes = std::strtoll(bytes.c_str(), nullptr, 10);
    return file;
  }

  /// Downloads the files that the snapshot lacks.
  template <class Names>
  void fetch(const Names& names) {
    std::vector<File> files;
    int64_t total = 0, before = 0;
    for (const std::string& name : names) {
      if (fs::exists(snapshot() / name)) continue;
      files.push_back(describe(name));
      if (!fs::exists(blob(files.back()))) total += std::max<int64_t>(files.back().bytes, 0);
    }
    std::optional<ProgressBar> bar;  // made when bytes come: another process may fetch them
    constexpr int64_t kMegabyte = 1'000'000;
    for (const File& file : files) {
      fetch(file, [&](int64_t bytes) {
        if (total < kMegabyte || options_.quiet) return;
        if (!bar) bar.emplace(ProgressBar::Options{.label = "download", .total = total / kMegabyte, .unit = "MB"});
        bar->update(std::min(before + bytes, total) / kMegabyte, id_.name);
      });
      if (bar) before += std::max<int64_t>(file.bytes, 0);
    }
    if (bar) bar->finish();
  }

  fs::path blob(const File& file) const { return id_.folder / "blobs" / file.etag; }

  void fetch(const File& file, const std::function<void(int64_t)>& progress) {
    const fs::path whole = blob(file), partial = whole.string() + ".incomplete", link = snapshot() / file.name;
    const auto lock =
        lock_file(hub_cache() / ".locks" / id_.folder.filename() / (file.etag + ".lock"), options_.stop_requested);
    make_folders(whole.parent_path());
    make_folders(link.parent_path());
    std::error_code none;
    if (!fs::exists(whole)) {
      check({.status = client_.download(path_of(file.name), partial, progress)});
      const auto bytes = static_cast<int64_t>(fs::file_size(partial));
      const bool has_size = file.bytes < 0 || bytes == file.bytes;
      if (!has_size || !has_hash_of_etag(partial, file.etag)) {
        fs::remove(partial);
        TORCH_CHECK(has_size, file.name, " of ", id_.name, ": ", bytes, " bytes came in place of ", file.bytes,
                    ". The download is removed; try again");
        TORCH_CHECK(false, file.name, " of ", id_.name, ": the content does not have the hash that the hub states. ",
                    "The download is removed; try again");
      }
      fs::rename(partial, whole);
      flush_folder(whole.parent_path());
    }
    if (fs::exists(link)) return;  // another process was faster
    fs::remove(link);
    fs::create_symlink(fs::path("../../blobs") / file.etag, link, none);
    if (none) fs::rename(whole, link);  // a file system without links
  }

  std::string endpoint_ = [] {
    std::string endpoint = variable({"HF_ENDPOINT"}, "https://huggingface.co");
    endpoint.erase(endpoint.find_last_not_of('/') + 1);
    return endpoint;
  }();
  ModelId id_;
  HubOptions options_;
  HubToken token_ = hub_token();
  HubClient client_;
  std::string commit_;
  std::set<std::string> names_;
};

}  // namespace

fs::path model_folder(const std::string& name, const HubOptions& options) {
  std::error_code none;
  if (fs::is_directory(name, none)) return name;
  if (none && none != std::errc::no_such_file_or_directory && none != std::errc::not_a_directory) {
    fail_to_read(name, none.value());
  }
  const auto id = parse_id(name);
  TORCH_CHECK_VALUE(!fs::exists(fs::symlink_status(name, none)), name,
                    ": is not a folder; name a folder with a model, or a model of the Hugging Face Hub");
  const bool is_path = name.starts_with('.') || name.starts_with('/') || name.starts_with('~');
  TORCH_CHECK_VALUE(id, name, ": there is no such folder.",
                    is_path ? "" : " A name on the Hugging Face Hub is NAME or ORG/NAME, and @REVISION if wanted.",
                    did_you_mean_file(name));
  const bool is_pinned = is_commit(id->revision);
  const std::string commit = is_pinned ? id->revision : read_word(id->folder / "refs" / id->revision);
  const fs::path snapshot = id->folder / "snapshots" / commit;
  const bool is_cached = is_commit(commit) && is_complete(snapshot, options.files);
  if (is_cached && (is_pinned || is_offline())) return snapshot;
  TORCH_CHECK_VALUE(!is_offline(), name,
                    ": there is no such folder, and the cache has no complete model of this name: ",
                    hub_cache().string(), ". HF_HUB_OFFLINE forbids the download.", did_you_mean_file(name));
  std::optional<Download> download;
  try {
    download.emplace(*id, options);
    download->look_up();
  } catch (const HubUnreachable& error) {
    TORCH_CHECK_VALUE(is_cached, name, ": there is no such folder, and ", error.what(), ".", did_you_mean_file(name));
    if (variable({"RANK"}, "0") == "0") {
      TORCH_WARN(name, ": ", error.what(), ". The cached commit ", commit, " is used");
    }
    return snapshot;
  }
  try {
    download->fetch();
  } catch (const HubUnreachable& error) {
    TORCH_CHECK(false, name, ": the download was interrupted: ", error.what(), ". The same command resumes it");
  }
  return download->snapshot();
}

std::string hub_name(const fs::path& folder) {
  const std::string cached = folder.parent_path().parent_path().filename().string();
  constexpr std::string_view kPrefix = "models--";
  if (!is_commit(folder.filename().string()) || folder.parent_path().filename() != "snapshots" ||
      !cached.starts_with(kPrefix)) {
    return folder.string();
  }
  std::string name = cached.substr(kPrefix.size());
  if (const size_t dashes = name.find("--"); dashes != name.npos) name.replace(dashes, 2, "/");
  return name + "@" + folder.filename().string();
}

}  // namespace mezzo::text
