-- Fixed window: one integer at a key that ends with the window's start, as the reference keeps it. The twin of fixed_window.rs.
local fixed_window = {}

-- Up to here a count is exact; beyond, it stays.
local USED_MAX = 9007199254740991

-- What has been used, whether the key says so already, and whether there was no key.
function fixed_window.load(key)
  local text = redis.call('GET', key)
  if not text then
    return 0, true, true
  end
  local used = string.match(text, '^%-?%d+$') and tonumber(text)
  if not used or used >= 2 ^ 63 then
    error({err = 'ERR value is not an integer or out of range'})
  end
  if used < 0 then
    return 0, false, false
  end
  if used > USED_MAX then
    return USED_MAX, false, false
  end
  return used, true, false
end

function fixed_window.keep(key, used, fresh, now, life)
  if fresh then
    redis.call('SET', key, used, 'EX', life)
  else
    redis.call('SET', key, used, 'KEEPTTL')
  end
end

-- The whole of most calls: hits that count whether they pass or not.
function fixed_window.count(key, argument)
  local text, life = string.match(argument, '^i(%d+) (%d+)$')
  local hits = tonumber(text)
  local used = redis.pcall('INCRBY', key, text)
  if type(used) == 'table' then
    if not string.find(used.err, 'overflow', 1, true) then
      error(used)
    end
    used = USED_MAX + 1
  end
  if used > USED_MAX then
    redis.call('SET', key, USED_MAX, 'KEEPTTL')
    return USED_MAX
  end
  if used > hits then
    return used
  end
  if used < hits then
    -- Somebody left less than nothing there: as good as nothing.
    redis.call('SET', key, text)
  end
  redis.call('EXPIRE', key, life)
  return hits
end
