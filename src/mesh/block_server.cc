// SPDX-License-Identifier: Apache-2.0
#include "mesh/block_server.h"

#include <utility>

namespace cistern::mesh {

BlockServer::OpenItem& BlockServer::Take(std::uint64_t* handle) {
  if (free_.empty()) {
    free_.push_back(items_.size());
    items_.push_back(std::make_unique<OpenItem>());
  }
  *handle = free_.back();
  free_.pop_back();
  return *items_[*handle];
}

Status BlockServer::Open(const BlockRequest& request, const ServedNamespace& ns, OpenItem& item) {
  const arena::ReadCall call = parts_.reader.Begin(ns.slot, parts_.clock.Wall().seconds);
  // By now the slot may be another namespace's.
  if (call.incarnation != ns.incarnation) return Status(Code::kMiss, "its namespace was dropped");
  const arena::AskedBlock asked{request.key, request.group, PeerMessageLimits::kParts};
  switch (parts_.reader.Open(call, asked, nullptr, item.record)) {
    case arena::ReadOutcome::kHit: return Status();
    // A reader of this node meets it too, and has it verified; a peer's word costs no more than a miss.
    case arena::ReadOutcome::kBad: return Status(Code::kIoError, "its seal does not check");
    case arena::ReadOutcome::kMiss:
    case arena::ReadOutcome::kOutOfRange: break;
  }
  return Status(Code::kMiss, "it is not in memory");
}

Task<net::RailSource::Answer> BlockServer::Find(net::ConstPiece question, Instant deadline) {
  const std::optional<BlockRequest> request = DecodeBlockRequest(question);
  if (!request) co_return Answer{.status = Status(Code::kInvalid, "no question for a block")};
  // Before anything is looked up: a drop that is applied in between is then the asker's to find.
  const std::optional<Answered> answered = parts_.view.Answering();
  if (!answered) co_return Answer{.status = Status(Code::kGone, "this member answers nobody now")};
  if (answered->history != request->history)
    co_return Answer{.status = Status(Code::kMismatch, "another history")};
  const std::optional<ServedNamespace> ns = parts_.view.Find(request->name);
  if (!ns) co_return Answer{.status = Status(Code::kMiss, "no such namespace")};
  std::uint64_t handle = 0;
  OpenItem& item = Take(&handle);
  item.kept = 0;
  Status status = Open(*request, *ns, item);
  const catalog::BlockName name{request->key, request->group};
  if (status.code() == Code::kMiss) {
    auto kept = co_await parts_.memory.Bring(*ns, name, deadline, request->worth_us);
    if (kept) {
      item.kept = *kept;
      status = Open(*request, *ns, item);
    } else {
      status = std::move(kept.error());
    }
  }
  Answer answer{.status = std::move(status)};
  const std::uint64_t now_s =
      answer.status.ok() ? parts_.reader.Begin(ns->slot, parts_.clock.Wall().seconds).now_s : 0;
  std::vector<std::uint64_t> notes;
  // A stamp is as old as its record: others may have used the block since, and who wrote it may have ended.
  // What nothing is noted of is nobody's here, and is so where it comes to.
  if (answer.status.ok() && item.record.stamp.conversation != 0)
    notes = (co_await parts_.memory.NotesOf(*ns, request->key)).value_or(std::vector<std::uint64_t>());
  if (answer.status.ok()) answer = AnswerOf(*answered, item, now_s, std::move(notes));
  if (answer.status.ok() && item.record.seal.body_bytes() > request->body_bytes)
    answer.status = Status(Code::kMismatch, "it is larger than the room that there is for it");
  answer.handle = handle;
  if (!answer.status.ok()) Release(handle);
  co_return answer;
}

net::RailSource::Answer BlockServer::AnswerOf(const Answered& answered, OpenItem& item, std::uint64_t now_s,
                                              std::vector<std::uint64_t> notes) const {
  const record::SealView& seal = item.record.seal;
  const record::Stamp& stamp = item.record.stamp;
  BlockHead head{.history = answered.history,
                 .a = answered.a,
                 .last = answered.last,
                 .put_id = seal.put_id(),
                 .key = seal.key(),
                 .parent = seal.parent(),
                 .notes = std::move(notes)};
  if (stamp.expiry != 0) {
    // Whole seconds that are left for certain: the current one has partly gone.
    if (stamp.expiry <= now_s + 1) return {.status = Status(Code::kMiss, "its time has passed, nearly")};
    head.ttl_s = static_cast<std::uint32_t>(stamp.expiry - now_s - 1);
  }
  for (std::uint32_t part = 0; part < seal.part_count(); ++part)
    head.part_bytes.push_back(seal.part_bytes(part));
  for (std::uint32_t segment = 0; segment < seal.segment_count(); ++segment)
    head.segment_crcs.push_back(seal.segment_crc(segment));
  Answer answer;
  answer.head = Encode(head);
  const std::byte* body = parts_.reader.arena().slot(item.record.place);
  answer.body = {net::ConstPiece(body, seal.body_bytes())};
  return answer;
}

bool BlockServer::Stands(std::uint64_t handle) const {
  return parts_.reader.StillGood(items_.at(handle)->record);
}

bool BlockServer::Sent(std::uint64_t handle) {
  const bool good = parts_.reader.StillGood(items_.at(handle)->record);
  Release(handle);
  return good;
}

void BlockServer::Release(std::uint64_t handle) {
  OpenItem& item = *items_.at(handle);
  if (item.kept != 0) parts_.memory.LetGo(std::exchange(item.kept, 0));
  free_.push_back(handle);
}

}  // namespace cistern::mesh
