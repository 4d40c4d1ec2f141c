// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "base/fd.h"
#include "base/format.h"
#include "base/limits.h"
#include "base/units.h"
#include "client/client.h"
#include "commands.h"
#include "prompt.h"

namespace cistern {
namespace {

// No more than a block may have: what FILE gives may have no end.
Result<std::vector<std::byte>> ReadFile(const std::string& path) {
  Fd opened;
  if (path != "-") {
    opened = Fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!opened.valid()) return Error(Code::kInvalid, Text("file ", path, ": ", ErrnoText(errno)));
  }
  const int file = path == "-" ? STDIN_FILENO : opened.get();
  std::vector<std::byte> bytes;
  for (;;) {
    const std::size_t had = bytes.size();
    if (had > kMaxBodyBytes)
      return Error(Code::kInvalid, Text("file ", path, ": has more than ", SizeText(kMaxBodyBytes),
                                        ", which is the most that a block may have"));
    bytes.resize(had + 65536);
    const ssize_t got = read(file, bytes.data() + had, bytes.size() - had);
    bytes.resize(had + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return bytes;
    if (got < 0 && errno != EINTR) return Error(Code::kInvalid, Text("file ", path, ": ", ErrnoText(errno)));
  }
}

Status CheckTtl(std::uint64_t ttl_us) {
  if (ttl_us < 1'000'000) return Status(Code::kInvalid, "--ttl: the least is 1s; leave it out for no limit");
  if (ttl_us / 1'000'000 <= UINT32_MAX) return Status();
  return Status(Code::kInvalid, Text("--ttl: ", DurationText(ttl_us), " is over the limit of ", UINT32_MAX,
                                     "s; leave it out for no limit"));
}

// Whether it was stored; false: a block of this key is there.
Result<bool> Put(Attachment& at, const BlockWrite& block, const WriteOptions& options) {
  const Result<WriteResult> result = at.store.Write(at.ns, std::span(&block, 1), options).Wait();
  if (!result) return Error(result.error());
  const WriteOutcome& outcome = result->outcomes.front();
  if (outcome.code != Code::kOk) return Error(outcome.code, result->message);
  if (outcome.state != WriteOutcome::State::kPending) return outcome.state == WriteOutcome::State::kPublished;
  return Error(client::WaitsForParent(block.key, block.parent));
}

}  // namespace

int RunPut(int argc, const char* const* argv) {
  Prompt prompt;
  std::string parent_hex, key_hex, path;
  std::uint64_t ttl_us = 0;
  CommandLine line(
      "cistern put",
      "Store a file as one block. Exits 1 where a block of this key is there already, which stays "
      "as it is.",
      "  cistern put --namespace demo 00112233445566778899aabbccddeeff kv.bin");
  prompt.AddTo(line, true);
  line.Text("--parent", "KEY", "the block before it in its chain; default: none", &parent_hex);
  line.Flag("--ttl", "DURATION", "how long it may live; default: no limit", [&ttl_us](std::string_view text) {
    const Result<std::uint64_t> us = ParseDurationUs("--ttl", text);
    if (!us) return us.error();
    ttl_us = *us;
    return CheckTtl(ttl_us);
  });
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
  Result<std::vector<std::byte>> bytes = ReadFile(path);
  if (!bytes) return Complain("cistern put", bytes.error());
  Result<Attachment> at = AttachByName(prompt);
  if (!at) return Complain("cistern put", at.error());
  WriteOptions options;
  options.ttl_s = static_cast<std::uint32_t>(ttl_us / 1'000'000);
  options.deadline_us = static_cast<std::int64_t>(prompt.deadline_us);
  const Result<bool> stored = Put(*at, BlockWrite{.key = *key, .parent = parent, .data = *bytes}, options);
  if (!stored) return Complain("cistern put", stored.error());
  if (prompt.json) {
    std::printf("{\"key\":\"%s\",\"bytes\":%zu,\"stored\":%s}\n", key->ToHex().c_str(), bytes->size(),
                *stored ? "true" : "false");
  }
  if (!*stored) {
    std::fprintf(stderr,
                 "cistern put: block %s is there already and stays as it is; drop it to store another\n",
                 key->ToHex().c_str());
    return kExitFailed;
  }
  return kExitOk;
}

}  // namespace cistern
