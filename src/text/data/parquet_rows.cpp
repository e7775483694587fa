#include "text/data/parquet_rows.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "text/data/row_formats.h"
#include "text/io/byte_source.h"
#include "text/parquet/parquet_module.h"

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModule = "mezzo_parquet.so";

/// Beside the program or library that this is part of, or where they are installed; empty where it is not.
fs::path find_module() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&read_parquet), &info) == 0) return {};
  const fs::path folder = fs::absolute(info.dli_fname).parent_path();
  for (const auto& place : {folder, folder / "../bin", folder / "../lib/mezzo"}) {
    std::error_code none;
    if (fs::exists(place / kModule, none)) return place / kModule;
  }
  return {};
}

/// Stays loaded.
decltype(&mezzo_read_parquet) load_module(const std::string& file) {
  const fs::path path = find_module();
  TORCH_CHECK_VALUE(!path.empty(), file, ": this build of mezzo reads no Parquet: ", kModule,
                    " is not beside it, which is built where the Python package pyarrow is. Install that and build "
                    "again, or save the file as .jsonl.");
  // Arrow's copies of libraries that LibTorch has, too, are to use their own functions.
  void* module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  void* function = module == nullptr ? nullptr : ::dlsym(module, "mezzo_read_parquet");
  TORCH_CHECK_VALUE(function != nullptr, file, ": this build of mezzo cannot read Parquet any more: ", ::dlerror());
  return reinterpret_cast<decltype(&mezzo_read_parquet)>(function);
}

struct Reading {
  RowCollector& rows;
  int64_t row = 0;
  std::exception_ptr error = nullptr;

  static bool take(void* context, const char* json, size_t size) {
    auto& self = *static_cast<Reading*>(context);
    try {
      read_json_object({json, size}, ++self.row, self.rows);
      return !self.rows.full();
    } catch (...) {
      self.error = std::current_exception();
      return false;
    }
  }
};

}  // namespace

void read_parquet(const fs::path& file, RowCollector& rows) {
  open_bytes(file);  // says so where it cannot be read
  static const auto read = load_module(file.string());
  const Columns& columns = rows.columns();
  std::vector<const char*> wanted{columns.text.name.c_str(), columns.text_pair.name.c_str()};
  if (rows.has_labels()) wanted.push_back(columns.label.name.c_str());
  const bool wants_all = rows.options().other_columns();
  Reading reading{rows};
  const char* message =
      read(file.c_str(), wants_all ? nullptr : wanted.data(), wanted.size(), &Reading::take, &reading);
  if (reading.error) std::rethrow_exception(reading.error);
  TORCH_CHECK_VALUE(message == nullptr, file.string(), ": ", message, ".");
}

}  // namespace mezzo::text
