"""Reading a job and acting on it: find it, judge its status, follow, list, stop and debug it. Asking for a job's state changes nothing of it."""
