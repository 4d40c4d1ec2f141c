// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <algorithm>

#include "base/assert.h"
#include "base/format.h"

namespace cistern::storm {
namespace {
constexpr std::uint32_t kGroups = 8;
}  // namespace

std::string TextOf(const BlockId& block) {
  return Text("namespace ", block.ns, " group ", block.group, " forest ", block.code / kTreeBlocks, " block ",
              block.code % kTreeBlocks);
}

Model::Model(std::uint32_t namespaces, bool trace)
    : trace_(trace),
      puts_(1),
      by_block_(std::size_t{namespaces} * kGroups * kCodes),
      odd_parents_(namespaces) {}

std::size_t Model::At(const BlockId& block) const {
  return (std::size_t{block.ns} * kGroups + block.group) * kCodes + block.code;
}

const std::vector<PutNo>& Model::PutsOf(const BlockId& block) const { return by_block_[At(block)]; }

PutNo Model::NewPut(Put put) {
  put.first_asked = Now();
  auto number = static_cast<PutNo>(puts_.size());
  by_block_[At(put.block)].push_back(number);
  if (put.parent != ParentOf(put.block.code)) odd_parents_[put.block.ns] = true;
  puts_.push_back(std::move(put));
  Trace("put ", number, ": ", TextOf(puts_[number].block), " parent ", puts_[number].parent, " ttl ",
        puts_[number].ttl_s, puts_[number].held ? " held" : "", " owner ", puts_[number].owner,
        " conversation ", puts_[number].conversation);
  return number;
}

bool Model::Capable(const Put& put) {
  return (!put.held || put.publish_asked) &&
         std::ranges::all_of(put.parts, [](const PutPart& part) { return part.committed || part.open > 0; });
}

void Model::WriteAsked(PutNo number, std::uint32_t part, std::uint64_t time_s) {
  Put& put = puts_[number];
  put.parts[part].open++;
  put.capable_until = 0;
  if (put.ttl_s != 0 && put.least_expiry == 0) put.least_expiry = time_s + put.ttl_s;
  Now();
  Trace("put ", number, " part ", part, " asked");
}

void Model::WriteAnswered(PutNo number, std::uint32_t part, bool ok, std::uint64_t time_s) {
  Put& put = puts_[number];
  bool was = Capable(put);
  PutPart& at = put.parts[part];
  CISTERN_ASSERT(at.open > 0);
  at.open--;
  at.last_done = Now();
  at.committed |= ok;
  if (put.ttl_s != 0) put.most_expiry = std::max(put.most_expiry, time_s + put.ttl_s);
  if (was && !Capable(put)) put.capable_until = at.last_done;
  Trace("put ", number, " part ", part, ok ? " committed" : " not taken");
}

void Model::WriteLost(PutNo number, std::uint32_t part, std::uint64_t time_s) {
  WriteAnswered(number, part, true, time_s);
}

void Model::PublishAsked(PutNo number, std::uint64_t owner) {
  Put& put = puts_[number];
  if (put.owner == owner) put.publish_asked = true;
  Now();
  Trace("put ", number, " publish asked by ", owner);
}

void Model::Wipe(PutNo number, Moment asked) {
  Put& put = puts_[number];
  bool was = Capable(put);
  for (PutPart& part : put.parts) {
    if (part.open == 0 && part.last_done < asked) part.committed = false;
  }
  if (was && !Capable(put)) {
    put.capable_until = Now();
    Trace("put ", number, " is gone for what was asked at ", asked);
  }
}

void Model::UnfinishedEnded(PutNo number, Moment asked) {
  if (Capable(puts_[number])) return;
  Wipe(number, asked);
}

void Model::Dropped(std::uint32_t ns, BlockCode code, Moment asked) {
  for (PutNo number = 1; number < puts_.size(); ++number) {
    const Put& put = puts_[number];
    if (put.block.ns != ns) continue;
    // Certain only where nobody said otherwise: by the block itself, or all the way up by its forest.
    bool below = put.block.code == code;
    if (!below && put.parent == code) below = true;
    if (!below && !odd_parents_[ns]) below = Below(ns, put.block.code, code);
    if (below) Wipe(number, asked);
  }
}

void Model::NamespaceDropped(std::uint32_t ns, Moment asked) {
  for (PutNo number = 1; number < puts_.size(); ++number) {
    if (puts_[number].block.ns == ns) Wipe(number, asked);
  }
}

void Model::Absent(PutNo number) {
  Put& put = puts_[number];
  bool was = Capable(put);
  for (PutPart& part : put.parts) {
    if (part.open == 0) part.committed = false;
  }
  if (was && !Capable(put)) {
    put.capable_until = Now();
    Trace("put ", number, " is absent");
  }
}

bool Model::Legal(PutNo number, Moment since) const {
  const Put& put = puts_[number];
  return Capable(put) || put.capable_until >= since;
}

bool Model::AnyLegal(const BlockId& block, Moment since) const {
  return std::ranges::any_of(PutsOf(block), [&](PutNo number) { return Legal(number, since); });
}

bool Model::OverBefore(PutNo number, Moment since) const {
  const Put& put = puts_[number];
  return !Capable(put) && put.capable_until != 0 && put.capable_until < since;
}

void Model::CheckSighting(const Sighting& seen, Moment since, std::uint64_t time_s) const {
  if (seen.put == 0 || seen.put >= puts_.size())
    Violation(Text(TextOf(seen.block), ": unknown put ", seen.put));
  auto number = static_cast<PutNo>(seen.put);
  const Put& put = puts_[number];
  std::string what = Text(TextOf(seen.block), " put ", number);
  if (!(put.block == seen.block)) Violation(Text(what, " was written as ", TextOf(put.block)));
  if (put.parent != seen.parent)
    Violation(Text(what, " has parent ", seen.parent, ", written was ", put.parent));
  std::uint64_t bytes = 0;
  for (const PutPart& part : put.parts) bytes += part.bytes;
  if (put.parts.size() != seen.parts || bytes != seen.body_bytes) {
    Violation(Text(what, " has ", seen.parts, " parts and ", seen.body_bytes, " bytes, written were ",
                   put.parts.size(), " and ", bytes));
  }
  if (!Legal(number, since)) {
    std::string why = Text("not whole or gone: held ", put.held, " published ", put.publish_asked, " parts");
    for (const PutPart& part : put.parts)
      why += Text(" [open ", part.open, " committed ", part.committed, "]");
    Violation(Text(what, " is visible and must not be (", why, ", since ", since, ", could be until ",
                   put.capable_until, ")"));
  }
  if ((put.ttl_s != 0) != (seen.expiry != 0)) Violation(Text(what, " has expiry ", seen.expiry));
  if (seen.expiry != 0) {
    bool open = std::ranges::any_of(put.parts, [](const PutPart& part) { return part.open > 0; });
    if (seen.expiry < put.least_expiry || (!open && seen.expiry > put.most_expiry)) {
      Violation(Text(what, " expires at ", seen.expiry, ", which is not from ", put.least_expiry, " to ",
                     put.most_expiry));
    }
    if (time_s >= seen.expiry)
      Violation(Text(what, " expired at ", seen.expiry, " and was read at ", time_s));
  }
}

bool Model::Below(std::uint32_t ns, BlockCode block, BlockCode code) const {
  if (!odd_parents_[ns]) {
    for (; block != 0; block = ParentOf(block)) {
      if (block == code) return true;
    }
    return false;
  }
  // Everything that somebody once named as a parent on the way up counts.
  std::vector<BlockCode> todo{block};
  std::vector<bool> known(kCodes);
  known[block] = true;
  while (!todo.empty()) {
    BlockCode at = todo.back();
    todo.pop_back();
    if (at == code) return true;
    auto add = [&](BlockCode parent) {
      if (parent == 0 || known[parent]) return;
      known[parent] = true;
      todo.push_back(parent);
    };
    add(ParentOf(at));
    for (std::uint16_t group = 0; group < kGroups; ++group) {
      for (PutNo number : PutsOf({ns, group, at})) add(puts_[number].parent);
    }
  }
  return false;
}

}  // namespace cistern::storm
