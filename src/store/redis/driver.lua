-- Decides many checks in one call. KEYS has the key of each check, ARGV the time (or nothing: Redis' own) and an argument for each
-- check; `T` and a number before arguments says that so many checks are decided together. The reply is the time, then for each check
-- what is spent afterwards, as -1 - spent if it was refused, or the text of an error, which is that check's alone.
local algorithms = {fixed_window, bucket}
local FORMAT = '<BBBddddd'
-- Arguments of another form, by their first letter.
local SHORT = {[105] = fixed_window.count} -- i

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function told(spent, over)
  if over then
    return -1 - spent
  end
  return spent
end

local function read(argument)
  local code, drops, veto, cost, full, deepest, life, rate = struct.unpack(FORMAT, argument)
  return algorithms[code], drops == 1, veto == 1, cost, full, deepest, life, rate
end

local function decide(key, argument)
  local algorithm, drops, veto, cost, full, deepest, life, rate = read(argument)
  local spent, kept, fresh = algorithm.load(key, now, deepest, life, rate)
  local after, over = charge(spent, cost, drops, full, deepest)
  if after ~= spent or not kept then
    algorithm.keep(key, after, fresh, now, life, rate)
  end
  return told(after, over)
end

-- All or nothing: decides over what was loaded, and keeps it if nobody vetoes. If somebody does, the others only look.
local function decide_together(first, arguments, count)
  local slots, checks, vetoed = {}, {}, false
  for index = 0, count - 1 do
    local key = KEYS[first + index]
    local algorithm, drops, veto, cost, full, deepest, life, rate = read(ARGV[arguments + index])
    local slot = slots[key]
    if not slot then
      local loaded, kept, fresh = algorithm.load(key, now, deepest, life, rate)
      slot = {algorithm = algorithm, loaded = loaded, kept = kept, fresh = fresh, spent = loaded, life = life, rate = rate}
      slots[key] = slot
    end
    local over
    slot.spent, over = charge(slot.spent, cost, drops, full, deepest)
    vetoed = vetoed or (over and veto)
    checks[index] = {slot = slot, drops = drops, cost = cost, deepest = deepest, over = over, reply = told(slot.spent, over)}
  end
  if vetoed then
    for _, slot in pairs(slots) do
      slot.spent = slot.loaded
    end
    for index = 0, count - 1 do
      local check = checks[index]
      local slot = check.slot
      if not check.over then
        check.reply = slot.spent
      elseif not check.drops then
        slot.spent = charged(slot.spent, check.cost, check.deepest)
      end
    end
  end
  for key, slot in pairs(slots) do
    if slot.spent ~= slot.loaded or not slot.kept then
      slot.algorithm.keep(key, slot.spent, slot.fresh, now, slot.life, slot.rate)
    end
  end
  return checks
end

local function text_of(trouble)
  return trouble.err or trouble
end

local replies = {now}
local key, argument = 1, 2
while KEYS[key] do
  local code = string.byte(ARGV[argument])
  if code == 84 then -- T
    local count = tonumber(string.sub(ARGV[argument], 2))
    local ok, checks = pcall(decide_together, key, argument + 1, count)
    for index = 0, count - 1 do
      replies[key + index + 1] = ok and checks[index].reply or text_of(checks)
    end
    key, argument = key + count, argument + 1 + count
  else
    local ok, reply = pcall(SHORT[code] or decide, KEYS[key], ARGV[argument])
    replies[key + 1] = ok and reply or text_of(reply)
    key, argument = key + 1, argument + 1
  end
end
return replies
