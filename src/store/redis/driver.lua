-- Decides many checks in one call. KEYS has the key of each check, ARGV the time (or nothing: Redis' own) and an argument for each
-- check, but for two kinds of marks: `T` and a number before arguments says that so many checks are decided together, and `i` with three
-- numbers stands for a run of checks of fixed windows: how many, of how many hits each, and how long their keys live. The reply is the
-- time, then for each check what is spent afterwards, as -1 - spent if it was refused, or the text of an error, which is that check's alone.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Everything but the shortcut below. Making it costs as much as several checks, so it is made when it is wanted.
local made
local function twins()
  if made then
    return made
  end
  --@ the twins of all algorithms
  local algorithms = {fixed_window, bucket}
  local FORMAT = '<BBBddddd'

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

  made = {decide = decide, decide_together = decide_together, settle = fixed_window.settle}
  return made
end

local function text_of(trouble)
  return trouble.err or trouble
end

-- The whole of most calls: hits that count whether they pass or not, to one window after the other.
local function count(first, argument, replies)
  local length, text, life = string.match(argument, '(%d+) (%d+) (%d+)')
  local hits = tonumber(text)
  for index = first, first + length - 1 do
    local used = redis.pcall('INCRBY', KEYS[index], text)
    if not tonumber(used) or used <= hits or used >= 9007199254740992 then
      local ok, reply = pcall(twins().settle, KEYS[index], used, text, life)
      used = ok and reply or text_of(reply)
    end
    replies[index + 1] = used
  end
  return first + length
end

local replies = {now}
local key, argument = 1, 2
while KEYS[key] do
  local code = string.byte(ARGV[argument])
  if code == 105 then -- i
    key, argument = count(key, ARGV[argument], replies), argument + 1
  elseif code == 84 then -- T
    local length = tonumber(string.sub(ARGV[argument], 2))
    local ok, checks = pcall(twins().decide_together, key, argument + 1, length)
    for index = 0, length - 1 do
      replies[key + index + 1] = ok and checks[index].reply or text_of(checks)
    end
    key, argument = key + length, argument + 1 + length
  else
    local ok, reply = pcall(twins().decide, KEYS[key], ARGV[argument])
    replies[key + 1] = ok and reply or text_of(reply)
    key, argument = key + 1, argument + 1
  end
end
return replies
