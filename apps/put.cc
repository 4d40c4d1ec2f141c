// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <fstream>
#include <iterator>

#include "base/format.h"
#include "commands.h"
#include "prompt.h"

namespace cistern {
namespace {

Result<std::vector<char>> ReadFile(const std::string& path) {
  if (path == "-") {
    std::vector<char> bytes;
    char buffer[65536];
    while (std::size_t n = std::fread(buffer, 1, sizeof(buffer), stdin))
      bytes.insert(bytes.end(), buffer, buffer + n);
    return bytes;
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error(Code::kInvalid, Text("file ", path, " cannot be read; check the path"));
  return std::vector<char>(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

}  // namespace

int RunPut(int argc, const char* const* argv) {
  Prompt prompt;
  std::string parent_hex, key_hex, path;
  std::uint64_t ttl_us = 0;
  CommandLine line("cistern put", "Store a file as one block.",
                   "  cistern put --namespace demo 00112233445566778899aabbccddeeff kv.bin");
  prompt.AddTo(line, true);
  line.Text("--parent", "KEY", "the block before it in its chain; default: none", &parent_hex);
  line.Duration("--ttl", "how long it may live; default: no limit", &ttl_us);
  line.Argument("KEY", "key, 2 to 64 hexadecimal digits", &key_hex);
  line.Argument("FILE", "what to store; - is standard input", &path);
  if (auto exit = line.Parse(argc, argv)) return *exit;

  Result<BlockKey> key = BlockKey::FromHex(key_hex);
  if (!key) return Complain("cistern put", key.error());
  std::optional<BlockKey> parent;
  if (!parent_hex.empty()) {
    Result<BlockKey> given = BlockKey::FromHex(parent_hex);
    if (!given) return Complain("cistern put", given.error());
    parent = *given;
  }
  if (ttl_us != 0 && ttl_us < 1'000'000) {
    return Complain("cistern put",
                    Status(Code::kInvalid, "--ttl: the least is 1s; leave it out for no limit"));
  }
  Result<std::vector<char>> bytes = ReadFile(path);
  if (!bytes) return Complain("cistern put", bytes.error());
  Result<Attachment> at = AttachByName(prompt);
  if (!at) return Complain("cistern put", at.error());
  WriteOptions options;
  options.ttl_s = static_cast<std::uint32_t>(ttl_us / 1'000'000);
  options.deadline_us = static_cast<std::int64_t>(prompt.deadline_us);
  Status status = at->store.Put(at->ns, *key, parent, std::as_bytes(std::span(*bytes)), options);
  if (!status.ok()) return Complain("cistern put", status);
  if (prompt.json) std::printf("{\"key\":\"%s\",\"bytes\":%zu}\n", key->ToHex().c_str(), bytes->size());
  return kExitOk;
}

}  // namespace cistern
