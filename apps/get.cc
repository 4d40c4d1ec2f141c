// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/fd.h"
#include "base/format.h"
#include "commands.h"
#include "prompt.h"

namespace cistern {

int RunGet(int argc, const char* const* argv) {
  Prompt prompt;
  std::string key_hex, path;
  CommandLine line("cistern get", "Fetch a block into a file. Exits 1 when it is not there.",
                   "  cistern get --namespace demo 00112233445566778899aabbccddeeff kv.bin");
  prompt.AddTo(line, true);
  line.Argument("KEY", "key, 2 to 64 hexadecimal digits", &key_hex);
  line.Argument("FILE", "where to put its bytes; - is standard output", &path);
  if (auto exit = line.Parse(argc, argv)) return *exit;

  Result<BlockKey> key = BlockKey::FromHex(key_hex);
  if (!key) return Complain("cistern get", key.error());
  if (prompt.json && path == "-") {
    return Complain("cistern get",
                    Status(Code::kInvalid, "--json and FILE - both ask for standard output; name a file"));
  }
  Result<Attachment> at = AttachByName(prompt, IfNew::kRefuse);
  if (!at) return Complain("cistern get", at.error());
  ReadOptions options;
  options.deadline_us = static_cast<std::int64_t>(prompt.deadline_us);
  Result<std::vector<std::byte>> bytes = at->store.Get(at->ns, *key, options);
  if (!bytes && bytes.error().code() == Code::kMiss) {
    const std::string why = WhyReadsAreOff(*at, options.deadline_us);
    return Complain("cistern get",
                    Status(Code::kMiss, why.empty() ? Text("block ", key->ToHex(), " is not here") : why));
  }
  if (!bytes) return Complain("cistern get", bytes.error());
  if (path == "-") {
    if (std::fwrite(bytes->data(), 1, bytes->size(), stdout) != bytes->size() || std::fflush(stdout) != 0) {
      return Complain("cistern get",
                      Status(Code::kIoError, Text("standard output cannot be written: ", ErrnoText(errno))));
    }
  } else {
    errno = 0;
    std::ofstream file(path, std::ios::binary);
    const bool opened = file.is_open();  // else what lies there is none of this call's
    file.write(reinterpret_cast<const char*>(bytes->data()), static_cast<std::streamsize>(bytes->size()));
    if (!file.flush()) {
      const std::string why = ErrnoText(errno);
      std::error_code ignored;
      if (opened && std::filesystem::is_regular_file(path, ignored)) std::filesystem::remove(path, ignored);
      return Complain("cistern get",
                      Status(Code::kIoError, Text("file ", path, " cannot be written: ", why)));
    }
  }
  if (prompt.json) std::printf("{\"key\":\"%s\",\"bytes\":%zu}\n", key->ToHex().c_str(), bytes->size());
  return kExitOk;
}

}  // namespace cistern
