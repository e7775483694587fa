#include "mezzo/text/tokenizers/tokenizer.h"

#include <c10/util/Exception.h>

#include "text/io/read_error.h"
#include "text/tokenizers/pipeline_files.h"

namespace mezzo::text {

std::shared_ptr<const Tokenizer> Tokenizer::from_pretrained(const std::filesystem::path& folder) {
  TORCH_CHECK_VALUE(std::filesystem::is_directory(folder), folder.string(),
                    ": is not a folder; name a Hugging Face folder with a model and its tokenizer.",
                    did_you_mean_file(folder));
  refuse_adapter(folder);
  return std::make_shared<PipelineTokenizer>(read_pipeline_folder(folder));
}

std::shared_ptr<const Tokenizer> Tokenizer::from_vocab(const std::filesystem::path& vocab) {
  return std::make_shared<PipelineTokenizer>(read_bert_vocab(vocab));
}

}  // namespace mezzo::text
